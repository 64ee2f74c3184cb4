//! Signatures: genuine bundles of others, and kernels signed by a Sigstore instance of our own.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use hub_fixture::sigstore::{Sigstore, Workflow};
use hub_fixture::{Build, KernelTree, samples};
use kernel_registry::{AllowedSigner, Error, Event, Registry, Signature, SignaturePolicy};

use crate::support::{Scene, fetch, listen, resolve};

const RELU: &str = "kernels-test/relu@v1";
const SOURCE: &str = "https://github.com/kernels-test/kernels";

fn data(name: &str) -> PathBuf {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/signatures");
    PathBuf::from(folder).join(name)
}

/// What `verify` says of a build folder that holds these two files.
fn signature_of(policy: SignaturePolicy, metadata: &[u8], bundle: &[u8]) -> Signature {
    let folder = tempfile::tempdir().unwrap();
    let build = folder.path().join("build/torch-cpu");
    fs::create_dir_all(&build).unwrap();
    fs::write(build.join("metadata.json"), metadata).unwrap();
    fs::write(build.join("metadata.json.sigstore"), bundle).unwrap();
    let registry = Registry::builder().cache_dir(folder.path().join("cache"));
    let registry = registry
        .offline(true)
        .signature_policy(policy)
        .build()
        .unwrap();
    let reference = build.to_str().unwrap().parse().unwrap();
    let mut found = registry.verify(&reference).unwrap();
    found.remove(0).signature
}

fn read(name: &str) -> Vec<u8> {
    fs::read(data(name)).unwrap()
}

/// The wheel's own workflow.
fn wheel_signer() -> AllowedSigner {
    let source = "https://github.com/trailofbits/rfc8785.py";
    let workflow = format!("{source}/.github/workflows/release.yml@refs/tags/v0.1.2");
    AllowedSigner::github(source, [workflow])
}

#[test]
fn a_genuine_bundle_of_a_github_workflow_holds_and_its_signer_is_told() {
    let wheel = read("rfc8785-0.1.2-py3-none-any.whl");
    let bundle = read("rfc8785-0.1.2-py3-none-any.whl.sigstore");
    // Signed by somebody who may not sign kernels.
    let signature = signature_of(SignaturePolicy::default(), &wheel, &bundle);
    assert_eq!(signature.as_str(), "unknown-signer", "{signature:?}");
    let signer = signature.signer().unwrap();
    assert_eq!(
        signer.issuer.as_deref(),
        Some(kernel_registry::GITHUB_ISSUER)
    );
    assert_eq!(
        signer.source_repository.as_deref(),
        Some("https://github.com/trailofbits/rfc8785.py")
    );
    assert!(
        signature.reason().unwrap().contains("release.yml"),
        "{signature:?}"
    );
    // Signed by somebody who may, and not a kernel.
    let policy = SignaturePolicy::new([wheel_signer()]);
    let signature = signature_of(policy, &wheel, &bundle);
    assert_eq!(signature.as_str(), "other-kernel");
    assert!(
        signature
            .reason()
            .unwrap()
            .contains("not a kernel's metadata")
    );
}

#[test]
fn a_genuine_bundle_over_other_bytes_does_not_hold() {
    let mut wheel = read("rfc8785-0.1.2-py3-none-any.whl");
    let bundle = read("rfc8785-0.1.2-py3-none-any.whl.sigstore");
    let middle = wheel.len() / 2;
    wheel[middle] ^= 1;
    let policy = SignaturePolicy::new([wheel_signer()]);
    let signature = signature_of(policy, &wheel, &bundle);
    assert_eq!(signature.as_str(), "invalid");
    let reason = signature.reason().unwrap();
    assert!(reason.contains("mismatch"), "{reason}");
}

#[test]
fn a_person_is_no_workflow() {
    let (text, bundle) = (
        read("cosign-v3-blob.txt"),
        read("cosign-v3-blob.sigstore.json"),
    );
    let signature = signature_of(SignaturePolicy::default(), &text, &bundle);
    assert_eq!(signature.as_str(), "unknown-signer", "{signature:?}");
    assert_eq!(signature.signer().unwrap().source_repository, None);
}

#[test]
fn bundles_that_prove_nothing_are_told_from_each_other() {
    for (bundle, reason) in [
        ("bundle_no_log_entry.txt.sigstore", "inclusion promise"),
        ("bundle_cve_2022_36056.txt.sigstore", ""),
        ("conda-attestation.sigstore.json", "attestation"),
    ] {
        let text = read("cosign-v3-blob.txt");
        let signature = signature_of(SignaturePolicy::default(), &text, &read(bundle));
        assert_eq!(signature.as_str(), "invalid", "{bundle}: {signature:?}");
        let found = signature.reason().unwrap();
        assert!(found.contains(reason), "{bundle}: {found}");
    }
    for bundle in ["", "{}", "null", "\u{1}", "[1,2]"] {
        let signature = signature_of(SignaturePolicy::default(), b"x", bundle.as_bytes());
        let reason = signature.reason().unwrap();
        assert!(
            reason.contains("not a Sigstore bundle"),
            "{bundle:?}: {reason}"
        );
    }
    let signature = signature_of(SignaturePolicy::default(), b"x", &[0xff, 0xfe]);
    assert_eq!(signature.reason(), Some("it is not UTF-8"));
}

/// A Hub whose relu is signed, and the policy that accepts that.
struct Signed {
    scene: Scene,
    sigstore: Arc<Sigstore>,
}

impl Signed {
    fn new() -> Self {
        let signed = Self {
            scene: Scene::new(),
            sigstore: Arc::new(Sigstore::new().unwrap()),
        };
        signed.put("kernels-test/relu", signed.build("torch-cpu", 1));
        signed
    }

    fn put(&self, repository: &str, build: Build) {
        let tree = KernelTree::new(repository).build("v1", build);
        self.scene.hub.put(&tree).unwrap();
    }

    fn build(&self, variant: &str, version: u64) -> Build {
        self.build_by(Workflow::github(SOURCE), variant, version)
    }

    fn build_by(&self, workflow: Workflow, variant: &str, version: u64) -> Build {
        let sigstore = Arc::clone(&self.sigstore);
        let build = samples::relu_build(variant, version);
        build.signed(move |metadata| sigstore.sign(&workflow, metadata))
    }

    fn policy(&self) -> SignaturePolicy {
        let workflow = Workflow::github(SOURCE).signer;
        let signer = AllowedSigner::github(SOURCE, [workflow]).for_owner("kernels-test");
        let policy = SignaturePolicy::new([signer]);
        policy
            .with_trusted_root(self.sigstore.trusted_root())
            .unwrap()
    }

    fn strict(&self) -> Registry {
        let builder = self.scene.builder().signature_policy(self.policy());
        builder.require_signed(true).build().unwrap()
    }

    /// The error of a fetch that requires a signature.
    fn refused(&self) -> Error {
        let error = fetch(&self.strict(), RELU).unwrap_err();
        assert_eq!(error.kind(), "bad-signature", "{error}");
        error
    }
}

#[test]
fn a_signed_kernel_is_fetched_where_signatures_are_required() {
    let signed = Signed::new();
    let installed = fetch(&signed.strict(), RELU).unwrap();
    let verified = installed.verified().unwrap();
    let Signature::Verified(workflow) = verified.signature() else {
        panic!("{:?}", verified.signature());
    };
    assert_eq!(workflow.source_repository.as_deref(), Some(SOURCE));
    assert_eq!(
        workflow.source_commit.as_deref(),
        Some("5".repeat(40).as_str())
    );
    // And from the cache, without a request.
    signed.scene.hub.clear_requests();
    let builder = signed.scene.builder().signature_policy(signed.policy());
    let offline = builder.require_signed(true).offline(true).build().unwrap();
    let again = fetch(&offline, RELU).unwrap();
    assert!(again.verified().unwrap().signature().is_verified());
    assert_eq!(signed.scene.hub.request_lines(), Vec::<String>::new());
    // `verify` says the same.
    let found = offline.verify(&RELU.parse().unwrap()).unwrap();
    assert!(
        found[0].is_ok() && found[0].signature.is_verified(),
        "{found:?}"
    );
}

#[test]
fn a_vendored_kernel_keeps_its_signature() {
    let signed = Signed::new();
    let installed = fetch(&signed.strict(), RELU).unwrap();
    let folder = tempfile::tempdir().unwrap();
    kernel_registry::vendor::vendor(&installed, folder.path()).unwrap();
    let kernels = kernel_registry::vendor::vendored(folder.path()).unwrap();
    let builder = signed.scene.builder().signature_policy(signed.policy());
    let builder = builder.require_signed(true).offline(true);
    let registry = builder.local_kernels(kernels).build().unwrap();
    let local = fetch(&registry, RELU).unwrap().verified().unwrap();
    assert!(local.signature().is_verified());
}

#[test]
fn metadata_that_was_changed_after_it_was_signed_is_refused() {
    let signed = Signed::new();
    fetch(&signed.strict(), RELU).unwrap();
    let other = signed.build("torch-cpu", 1).file("extra.py", "EXTRA = 1\n");
    let commit = signed.scene.hub.commit("kernels-test/relu", "v1").unwrap();
    let changed = KernelTree::new("kernels-test/relu").build("v1", other);
    let files = changed.branch_files("v1").unwrap();
    // The signature of the first state, over the metadata of the second.
    let snapshot = signed
        .scene
        .repository("kernels-test/relu")
        .join("snapshots")
        .join(commit);
    let bundle = fs::read(snapshot.join("build/torch-cpu/metadata.json.sigstore")).unwrap();
    let build = Build::new("torch-cpu")
        .raw_metadata(files["build/torch-cpu/metadata.json"].clone())
        .undigested("metadata.json.sigstore", bundle);
    signed.put("kernels-test/relu", build);
    let error = signed.refused();
    assert!(error.to_string().contains("mismatch"), "{error}");
}

#[test]
fn a_signed_build_is_not_taken_for_another_one() {
    // Signed metadata, moved to another repository, version or backend.
    let signed = Signed::new();
    let tree = KernelTree::new("kernels-test/relu").build("v1", signed.build("torch-cpu", 1));
    let files = tree.branch_files("v1").unwrap();
    let moved = |variant: &str| {
        let mut build = Build::new(variant);
        for (path, content) in &files {
            let name = path.strip_prefix("build/torch-cpu/").unwrap();
            build = build.undigested(name, content.clone());
        }
        build.raw_metadata(files["build/torch-cpu/metadata.json"].clone())
    };
    let hub = &signed.scene.hub;
    for (repository, branch, variant, part) in [
        (
            "kernels-test/gelu",
            "v1",
            "torch-cpu",
            "the kernel `relu`, not `gelu`",
        ),
        ("kernels-test/relu", "v7", "torch-cpu", "version 1, not 7"),
        ("kernels-test/relu", "v1", "torch-tpu", "the backend cpu"),
    ] {
        hub.put(&KernelTree::new(repository).build(branch, moved(variant)))
            .unwrap();
        let backend = variant.strip_prefix("torch-").unwrap();
        let system = kernel_spec::System::new("x86_64", "linux", backend.parse().unwrap());
        let builder = signed.scene.builder().signature_policy(signed.policy());
        let strict = builder.require_signed(true).system(system).build().unwrap();
        let error = fetch(&strict, &format!("{repository}@{branch}")).unwrap_err();
        assert_eq!(
            error.kind(),
            "bad-signature",
            "{repository}@{branch}: {error}"
        );
        assert!(error.to_string().contains(part), "{error}");
    }
}

#[test]
fn workflows_that_may_not_sign_are_refused() {
    let other = "https://github.com/kernels-test/other";
    let base = || Workflow::github(SOURCE);
    for (workflow, part) in [
        (Workflow::github(other), "not accepted"),
        (
            Workflow {
                signer: format!("{SOURCE}/.github/workflows/build.yaml@refs/heads/fork"),
                ..base()
            },
            "refs/heads/fork",
        ),
        (
            Workflow {
                issuer: "https://issuer.invalid".to_owned(),
                ..base()
            },
            "issuer.invalid",
        ),
        (
            Workflow {
                source_repository: other.to_owned(),
                ..base()
            },
            "not accepted",
        ),
    ] {
        let signed = Signed::new();
        signed.put(
            "kernels-test/relu",
            signed.build_by(workflow, "torch-cpu", 1),
        );
        let error = signed.refused();
        assert!(error.to_string().contains(part), "{error}");
        // Not required: used, and said what is known.
        let builder = signed.scene.builder().signature_policy(signed.policy());
        let resolved = resolve(&builder.build().unwrap(), RELU).unwrap();
        assert_eq!(resolved.signature.as_str(), "unknown-signer");
    }
}

#[test]
fn a_signer_of_one_owner_does_not_sign_for_another() {
    let signed = Signed::new();
    signed.put("someone/relu", signed.build("torch-cpu", 1));
    let builder = signed.scene.builder().signature_policy(signed.policy());
    let builder = builder
        .trust(["someone/relu".parse().unwrap()])
        .require_signed(true);
    let error = fetch(&builder.build().unwrap(), "someone/relu@v1").unwrap_err();
    assert_eq!(error.kind(), "bad-signature");
    assert!(
        error.to_string().contains("kernels of `someone`"),
        "{error}"
    );
}

#[test]
fn a_bundle_of_an_instance_that_is_not_trusted_is_refused() {
    let signed = Signed::new();
    let stranger = Arc::new(Sigstore::new().unwrap());
    let build = samples::relu_build("torch-cpu", 1)
        .signed(move |metadata| stranger.sign(&Workflow::github(SOURCE), metadata));
    signed.put("kernels-test/relu", build);
    signed.refused();
    // Under the public root, ours is the stranger.
    let ours = Signed::new();
    let builder = ours.scene.builder().require_signed(true);
    let error = fetch(&builder.build().unwrap(), RELU).unwrap_err();
    assert_eq!(error.kind(), "bad-signature");
}

#[test]
fn evidence_that_was_taken_out_or_changed_is_missed() {
    let signed = Signed::new();
    let tree = KernelTree::new("kernels-test/relu").build("v1", signed.build("torch-cpu", 1));
    let files = tree.branch_files("v1").unwrap();
    let bundle = &files["build/torch-cpu/metadata.json.sigstore"];
    let bundle: serde_json::Value = serde_json::from_slice(bundle).unwrap();
    let entry = "/verificationMaterial/tlogEntries/0";
    let empty = serde_json::json!([]);
    for (place, value) in [
        ("/verificationMaterial/tlogEntries", empty),
        (&*format!("{entry}/integratedTime"), "1704197000".into()),
        (
            &*format!("{entry}/inclusionProof/rootHash"),
            "A".repeat(43).into(),
        ),
        (&*format!("{entry}/canonicalizedBody"), "e30=".into()),
        ("/messageSignature/signature", "MAYCAQECAQE=".into()),
        ("/verificationMaterial/certificate/rawBytes", "MAA=".into()),
    ] {
        let mut changed = bundle.clone();
        *changed.pointer_mut(place).unwrap() = value;
        let build = samples::relu_build("torch-cpu", 1).signed(move |_| Ok(changed.to_string()));
        signed.put("kernels-test/relu", build);
        let error = signed.refused();
        assert!(
            error.to_string().contains("does not hold"),
            "{place}: {error}"
        );
    }
}

#[test]
fn a_broken_signature_is_said_where_none_is_required() {
    let signed = Signed::new();
    let build = samples::relu_build("torch-cpu", 1).signed(|_| Ok("{}".to_owned()));
    signed.put("kernels-test/relu", build);
    let (registry, events) = listen(signed.scene.builder());
    let resolved = resolve(&registry, RELU).unwrap();
    assert_eq!(resolved.signature.as_str(), "invalid");
    let events = events.lock().unwrap();
    let said =
        |event: &Event| matches!(event, Event::Warning(text) if text.contains("does not count"));
    assert!(events.iter().any(said), "{events:?}");
}

#[test]
fn a_signature_that_was_taken_away_is_missed() {
    let signed = Signed::new();
    let installed = fetch(&signed.strict(), RELU).unwrap();
    fs::remove_file(installed.path.join("metadata.json.sigstore")).unwrap();
    let builder = signed.scene.builder().signature_policy(signed.policy());
    let offline = builder.require_signed(true).offline(true).build().unwrap();
    let error = fetch(&offline, RELU).unwrap_err();
    assert_eq!(error.kind(), "signature-required");
}

#[test]
fn a_policy_is_read_from_a_file() {
    let signed = Signed::new();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policy.json");
    fs::write(
        folder.path().join("root.json"),
        signed.sigstore.trusted_root(),
    )
    .unwrap();
    let workflow = Workflow::github(SOURCE).signer;
    let text = format!(
        r#"{{"format": 1, "trusted-root": "root.json", "signers": [{{"source-repository": "{SOURCE}",
            "workflows": ["{workflow}"], "owners": ["kernels-test"]}}]}}"#
    );
    fs::write(&path, &text).unwrap();
    let policy = SignaturePolicy::read(&path).unwrap();
    assert_eq!(policy.signers()[0].issuer, kernel_registry::GITHUB_ISSUER);
    let builder = signed
        .scene
        .builder()
        .signature_policy(policy)
        .require_signed(true);
    fetch(&builder.build().unwrap(), RELU)
        .unwrap()
        .verified()
        .unwrap();

    for (change, part) in [
        (text.replace("\"format\": 1", "\"format\": 2"), "format 2"),
        (text.replace("workflows", "workflow"), "workflow"),
        (text.replace("root.json", "none.json"), "none.json"),
        (format!("{text}x"), "not a signature policy"),
        (text.replace("root.json", "policy.json"), "trusted root"),
    ] {
        fs::write(&path, &change).unwrap();
        let error = SignaturePolicy::read(&path).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
}
