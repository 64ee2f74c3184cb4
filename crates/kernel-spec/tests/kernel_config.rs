//! What a model's config can ask for, and how mistakes in it are told.

use kernel_spec::{
    DeviceType, Error, Fallback, KernelConfig, KernelSource, OpKernel, OpName, Selector,
};
use serde_json::{Value, json};

fn read(config: &Value) -> KernelConfig {
    KernelConfig::from_model_config(config).unwrap_or_else(|error| panic!("{config}: {error}"))
}

fn mapping(value: &Value) -> Value {
    json!({"kernel_config": {"kernel_mapping": value}})
}

fn shown(config: &KernelConfig, op: OpName, device: DeviceType) -> Option<String> {
    config.kernel(op, device).map(|kernel| match kernel {
        OpKernel::Default => "default".to_owned(),
        OpKernel::Hub {
            reference,
            trust_remote_code: false,
        } => reference.to_string(),
        OpKernel::Hub {
            reference,
            trust_remote_code: true,
        } => format!("{reference} trusted"),
    })
}

#[test]
fn every_spelling_of_a_kernel_is_read() {
    let config = read(&json!({
        "attn_implementation": "org/flash@v1:attention",
        "kernel_config": {
            "kernel_mapping": {
                "RMSNorm": {"tpu": "org/rms@v1:RMSNorm", "cpu": "./rms:RMSNorm", "cuda": ""},
                "SwiGLUMLP": ["org/mlp:SwiGLUMLP", {"version": 1, "trust_remote_code": true}],
                "SiLU": ["org/act:SiLU", {"revision": "main"}],
                "SiluAndMul": "org/act:layers.SiluAndMul",
                "rotary_pos_emb": ""
            },
            "inherit_mapping": false,
            "fallback": "error"
        }
    }));
    let on = |op, device| shown(&config, op, device);
    assert_eq!(
        on(OpName::RmsNorm, DeviceType::Tpu).as_deref(),
        Some("org/rms@v1:RMSNorm")
    );
    assert_eq!(
        on(OpName::RmsNorm, DeviceType::Cpu).as_deref(),
        Some("./rms:RMSNorm")
    );
    assert_eq!(
        on(OpName::RmsNorm, DeviceType::Cuda).as_deref(),
        Some("default")
    );
    assert_eq!(on(OpName::RmsNorm, DeviceType::Rocm), None);
    let mlp = "org/mlp@v1:SwiGLUMLP trusted";
    assert_eq!(on(OpName::SwiGluMlp, DeviceType::Tpu).as_deref(), Some(mlp));
    assert_eq!(
        on(OpName::Silu, DeviceType::Tpu).as_deref(),
        Some("org/act@main:SiLU")
    );
    let symbol = "org/act:layers.SiluAndMul";
    assert_eq!(
        on(OpName::SiluAndMul, DeviceType::Tpu).as_deref(),
        Some(symbol)
    );
    assert_eq!(
        on(OpName::RotaryPosEmb, DeviceType::Tpu).as_deref(),
        Some("default")
    );
    let attention = "org/flash@v1:attention";
    assert_eq!(
        on(OpName::Attention, DeviceType::Tpu).as_deref(),
        Some(attention)
    );
    assert!(!config.inherit_mapping);
    assert_eq!(config.fallback, Fallback::Error);
    assert_eq!(config.kernels_on(DeviceType::Npu).count(), 5);
}

#[test]
fn a_config_without_kernels_asks_for_none_and_an_empty_one_for_the_index_s() {
    let none = KernelConfig {
        inherit_mapping: false,
        ..KernelConfig::default()
    };
    for config in [
        json!({}),
        json!({"kernel_config": null, "attn_implementation": "sdpa"}),
    ] {
        assert_eq!(read(&config), none);
    }
    assert_eq!(read(&json!({"kernel_config": {}})), KernelConfig::default());
    assert!(KernelConfig::default().inherit_mapping);
}

#[test]
fn a_mapping_of_attention_wins_over_attn_implementation() {
    let config = read(&json!({
        "attn_implementation": "org/flash",
        "kernel_config": {"kernel_mapping": {"attention": {"tpu": "org/other:attention"}}}
    }));
    let on = |device| shown(&config, OpName::Attention, device);
    assert_eq!(on(DeviceType::Tpu).as_deref(), Some("org/other:attention"));
    assert_eq!(on(DeviceType::Cpu), None);
}

#[test]
fn use_local_kernel_makes_every_reference_a_path() {
    let config = read(&json!({"kernel_config": {
        "use_local_kernel": true,
        "kernel_mapping": {"RMSNorm": "kernels/rms:RMSNorm", "SiLU": "/k/act:SiLU"}
    }}));
    let path = |op| match &config
        .kernel(op, DeviceType::Cpu)
        .unwrap()
        .reference()
        .unwrap()
        .source
    {
        KernelSource::Path(path) => path.clone(),
        other @ KernelSource::Hub { .. } => panic!("{other:?}"),
    };
    assert_eq!(path(OpName::RmsNorm).to_str(), Some("./kernels/rms"));
    assert_eq!(path(OpName::Silu).to_str(), Some("/k/act"));
}

#[test]
fn a_file_may_hold_the_inside_only() {
    let inside = json!({"kernel_mapping": {"SiLU": "a/b:SiLU"}, "fallback": "silent"});
    let outside = json!({"kernel_config": inside.clone()});
    let read = KernelConfig::from_kernel_config(&inside).unwrap();
    assert_eq!(KernelConfig::from_kernel_config(&outside), Ok(read.clone()));
    assert_eq!(read.fallback, Fallback::Silent);
}

#[test]
fn the_newest_version_is_meant_where_none_is_named() {
    let config = read(&mapping(
        &json!({"SiLU": ["a/b:SiLU", {"trust_remote_code": false}]}),
    ));
    let kernel = config.kernel(OpName::Silu, DeviceType::Tpu).unwrap();
    let KernelSource::Hub { selector, .. } = &kernel.reference().unwrap().source else {
        panic!()
    };
    assert_eq!(selector, &Selector::Newest);
}

#[test]
fn mistakes_name_the_path_and_say_what_is_known() {
    let op = |value: &Value| mapping(&json!({"RMSNorm": value}));
    for (config, path, hint) in [
        (mapping(&json!({"RmsNorm": "a/b"})), "RmsNorm`", "`RMSNorm`"),
        (mapping(&json!({"Quux": ""})), "Quux`", "SwiGLUMLP"),
        (op(&json!({"tpus": "a/b"})), "RMSNorm.tpus`", "`tpu`"),
        (op(&json!({"metal": "a/b"})), "RMSNorm.metal`", ""),
        (
            op(&json!({"tpu": {"inference": "a/b"}})),
            "RMSNorm.tpu`",
            "",
        ),
        (op(&json!("rms")), "RMSNorm`", "./rms"),
        (op(&json!("a/b@:X")), "RMSNorm`", "@v1"),
        (op(&json!({"tpu": "a b/c"})), "RMSNorm.tpu`", "org/name"),
        (op(&json!(null)), "RMSNorm`", ""),
        (op(&json!(["a/b:X"])), "RMSNorm`", ""),
        (op(&json!(["", {}])), "RMSNorm`", ""),
        (
            op(&json!(["a/b:X", {"verion": 1}])),
            "RMSNorm[1].verion`",
            "`version`",
        ),
        (
            op(&json!(["a/b:X", {"version": "1"}])),
            "RMSNorm[1].version`",
            "",
        ),
        (
            op(&json!(["a/b:X", {"version": -1}])),
            "RMSNorm[1].version`",
            "",
        ),
        (
            op(&json!(["a/b:X", {"version": 1, "revision": "x"}])),
            "RMSNorm[1]`",
            "",
        ),
        (op(&json!(["a/b@v2:X", {"version": 1}])), "RMSNorm[1]`", ""),
        (op(&json!(["./b:X", {"version": 1}])), "RMSNorm[1]`", ""),
        (
            op(&json!(["a/b:X", {"revision": "a b"}])),
            "RMSNorm[1].revision`",
            "",
        ),
        (
            op(&json!(["a/b:X", {"trust_remote_code": "yes"}])),
            "[1].trust_remote_code`",
            "",
        ),
        (mapping(&json!([])), "`kernel_config.kernel_mapping`", ""),
        (json!({"kernel_config": []}), "`kernel_config`", ""),
        (
            json!({"kernel_config": {"inherit_maping": true}}),
            "inherit_maping`",
            "`inherit_mapping`",
        ),
        (
            json!({"kernel_config": {"fallback": "wran"}}),
            "`kernel_config.fallback`",
            "`warn`",
        ),
        (
            json!({"kernel_config": {"fallback": 1}}),
            "`kernel_config.fallback`",
            "",
        ),
        (
            json!({"kernel_config": {"use_local_kernel": 1}}),
            "use_local_kernel`",
            "",
        ),
        (
            json!({"attn_implementation": "spda"}),
            "`attn_implementation`",
            "`sdpa`",
        ),
        (
            json!({"attn_implementation": "a/b@"}),
            "`attn_implementation`",
            "@v1",
        ),
        (
            json!({"attn_implementation": {"text": "sdpa"}}),
            "`attn_implementation`",
            "",
        ),
        (json!([]), "`config.json`", ""),
    ] {
        let error = KernelConfig::from_model_config(&config).unwrap_err();
        assert!(matches!(error, Error::Config { .. }), "{config}: {error:?}");
        assert!(error.to_string().contains(path), "{config}: {error}");
        let given = error.hint().unwrap_or_default();
        assert!(given.contains(hint), "{config}: {given}");
    }
}
