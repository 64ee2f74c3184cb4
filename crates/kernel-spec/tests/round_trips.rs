//! Properties: what is written reads back as what it was, and no text makes a parser panic.

#![expect(clippy::unwrap_used, reason = "a test may stop at bad test data")]

use kernel_spec::variant::{Backend, CxxAbi, Framework, Variant};
use kernel_spec::version::MajorMinor;
use kernel_spec::{
    CommitId, Dependency, KernelConfig, KernelRef, KernelSource, Lockfile, Metadata, RepositoryId,
    Requirement, Selector, System, variant,
};
use proptest::prelude::*;

fn repository() -> impl Strategy<Value = RepositoryId> {
    (
        "[a-zA-Z0-9_]{1,8}([-.][a-zA-Z0-9_]{1,8}){0,2}",
        "[a-zA-Z0-9_]{1,8}(-[a-zA-Z0-9_]{1,8}){0,2}",
    )
        .prop_filter_map("a checked id", |(owner, name)| {
            RepositoryId::new(&owner, &name).ok()
        })
}

fn revision() -> impl Strategy<Value = String> {
    "[a-zA-Z0-9_]{1,6}([-./][a-zA-Z0-9_]{1,6}){0,2}".prop_filter("not a version", |text| {
        kernel_spec::version::version_of_branch(text).is_none()
            && kernel_spec::reference::check_revision(text).is_ok()
    })
}

fn symbol() -> impl Strategy<Value = Option<String>> {
    proptest::option::of("[a-zA-Z_][a-zA-Z0-9_]{0,8}(\\.[a-zA-Z_][a-zA-Z0-9_]{0,4}){0,2}")
}

fn source() -> impl Strategy<Value = KernelSource> {
    let selector = prop_oneof![
        any::<u64>().prop_map(Selector::Version),
        revision().prop_map(Selector::Revision),
        Just(Selector::Newest),
    ];
    prop_oneof![
        (repository(), selector).prop_map(|(repository, selector)| KernelSource::Hub {
            repository,
            selector
        }),
        "(/|\\./|\\.\\./)[a-z:@ .-]{0,8}(/[a-z:@.-]{1,8}){0,2}/?"
            .prop_map(|path| KernelSource::Path(path.into())),
    ]
}

fn version() -> impl Strategy<Value = MajorMinor> {
    (0_u64..10, 0_u64..1000).prop_map(|(major, minor)| MajorMinor::new(major, minor))
}

fn backend() -> impl Strategy<Value = Backend> {
    let version = (1_u64..3000, 0_u64..10).prop_map(|(major, minor)| MajorMinor::new(major, minor));
    prop_oneof![
        Just(Backend::Cpu),
        Just(Backend::Metal),
        Just(Backend::Neuron),
        Just(Backend::Tpu),
        version.clone().prop_map(Backend::Cuda),
        version.clone().prop_map(Backend::Rocm),
        version.clone().prop_map(Backend::Xpu),
        version.prop_map(Backend::Cann),
    ]
}

fn any_variant() -> impl Strategy<Value = Variant> {
    let abi = prop_oneof![
        Just(None),
        Just(Some(CxxAbi::Cxx11)),
        Just(Some(CxxAbi::Cxx98))
    ];
    let framework = prop_oneof![
        (version(), abi).prop_map(|(version, abi)| Framework::Torch { version, abi }),
        version().prop_map(|version| Framework::TorchStableAbi { version }),
        version().prop_map(|version| Framework::TvmFfi { version }),
    ];
    prop_oneof![
        (framework, backend(), "[a-z0-9_]{1,8}", "[a-z]{1,8}").prop_map(
            |(framework, backend, cpu, os)| Variant::Arch {
                framework,
                backend,
                cpu,
                os
            }
        ),
        "[a-z0-9]{0,8}".prop_map(|backend| Variant::Noarch { backend }),
    ]
}

fn dependency() -> impl Strategy<Value = Dependency> {
    let requirement = prop_oneof![
        any::<u64>().prop_map(Requirement::Version),
        revision().prop_map(Requirement::Revision),
    ];
    (repository(), requirement).prop_map(|(repository, requirement)| Dependency {
        repository,
        requirement,
    })
}

fn commit() -> impl Strategy<Value = CommitId> {
    prop_oneof!["[0-9a-f]{40}", "[0-9a-f]{64}"].prop_map(|text| text.parse().unwrap())
}

proptest! {
    #[test]
    fn references_survive(source in source(), symbol in symbol()) {
        let reference = KernelRef { source, symbol };
        let text = reference.to_string();
        let read: KernelRef = text.parse()?;
        // A path may gain the slash that keeps its colon from starting a symbol, and no more.
        prop_assert_eq!(read.to_string(), text);
        prop_assert_eq!(&read.symbol, &reference.symbol);
        match (&read.source, &reference.source) {
            (KernelSource::Path(read), KernelSource::Path(given)) => {
                prop_assert_eq!(read.components().collect::<Vec<_>>(),
                    given.components().collect::<Vec<_>>());
            }
            (read, given) => prop_assert_eq!(read, given),
        }
    }

    #[test]
    fn variants_survive(given in any_variant()) {
        let read: Variant = given.to_string().parse()?;
        prop_assert_eq!(read, given);
    }

    #[test]
    fn locks_survive(entries in proptest::collection::vec((dependency(), commit()), 0..6)) {
        let lock: Lockfile = entries.into_iter().collect();
        let text = lock.render();
        let read = Lockfile::from_slice(text.as_bytes())?;
        prop_assert_eq!(read.render(), text);
        prop_assert_eq!(read, lock);
    }

    #[test]
    fn resolution_does_not_depend_on_the_order_of_names(
        variants in proptest::collection::vec(any_variant(), 0..12).prop_shuffle(),
        backend in backend(),
    ) {
        let system = System::new("x86_64", "linux", backend).with_torch(MajorMinor::new(2, 10), Some(true));
        let names: Vec<_> = variants.iter().map(ToString::to_string).collect();
        let forwards = variant::resolve(&system, &names);
        let backwards = variant::resolve(&system, names.iter().rev());
        prop_assert_eq!(forwards, backwards);
    }

    #[test]
    fn no_text_makes_a_parser_panic(text in "\\PC{0,40}") {
        let _ = text.parse::<KernelRef>();
        let _ = text.parse::<RepositoryId>();
        let _ = text.parse::<Variant>();
        let _ = text.parse::<Backend>();
        let _ = Metadata::from_slice(text.as_bytes());
        let _ = Lockfile::from_slice(text.as_bytes());
        let _ = kernel_spec::KernelStatus::from_toml(&text);
        let _ = kernel_spec::project::dependencies(&text);
        let _ = kernel_spec::check_relative_path(&text);
    }

    #[test]
    fn no_words_make_the_variant_parser_panic(
        text in "(torch|tvm|torch-stable-abi|ffi|cu|rocm|cxx11|-|[0-9]|é){0,10}",
    ) {
        let _ = text.parse::<Variant>();
    }

    #[test]
    fn no_value_makes_the_config_parser_panic(
        op in "[a-zA-Z_]{0,6}|RMSNorm|rotary_pos_emb",
        reference in "\\PC{0,20}",
        version in any::<i64>(),
    ) {
        let config = serde_json::json!({"kernel_config": {"kernel_mapping": {
            op: [reference, {"version": version}],
        }}, "attn_implementation": "x/y"});
        let _ = KernelConfig::from_model_config(&config);
    }
}
