//! Kernels that need no Hub: folders, overrides, and those inside the program.

use std::fs;
use std::path::Path;

use hub_fixture::samples;
use kernel_registry::{Event, Origin, Registry, RegistryBuilder, Trust};
use kernel_spec::index::Origin as IndexOrigin;
use kernel_spec::{Backend, KernelRef, System};

use crate::support::{Scene, builder, fetch, files, files_of_build, listen};

/// Settings with which every request would fail.
fn alone(cache: &Path) -> RegistryBuilder {
    builder("http://127.0.0.1:9", cache).offline(true)
}

fn local(
    registry: &Registry,
    path: &Path,
) -> kernel_registry::Result<kernel_registry::VerifiedKernel> {
    let resolved = registry.resolve(&KernelRef::path(path))?;
    registry.install(&resolved)?.verified()
}

#[test]
fn a_folder_is_a_kernel_with_or_without_the_build_folder_around_it() {
    let folder = tempfile::tempdir().unwrap();
    samples::relu().write_branch("v1", folder.path()).unwrap();
    let registry = alone(&folder.path().join("cache")).build().unwrap();
    let mut expected = files_of_build(&samples::relu(), "v1", "torch-cpu");
    expected.remove("metadata.json").unwrap();
    for path in ["", "build", "build/torch-cpu"] {
        let verified = local(&registry, &folder.path().join(path)).unwrap();
        assert_eq!(verified.variant(), "torch-cpu", "{path}");
        assert_eq!(verified.trust(), Trust::Local);
        assert_eq!(verified.repository(), None);
        assert_eq!(verified.commit(), None);
        assert!(verified.files().keys().eq(expected.keys()));
    }
    assert!(!folder.path().join("cache").exists());
}

#[test]
fn a_folder_that_was_changed_after_its_build_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    samples::tampered()
        .write_branch("v1", folder.path())
        .unwrap();
    let registry = alone(&folder.path().join("cache")).build().unwrap();
    let error = local(&registry, folder.path()).unwrap_err();
    assert_eq!(error.kind(), "digest-mismatch");
    assert!(error.to_string().contains("layers/__init__.py"), "{error}");
}

#[test]
fn a_folder_whose_bytes_nobody_vouches_for_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    samples::universal()
        .write_branch("v1", folder.path())
        .unwrap();
    let registry = alone(&folder.path().join("cache")).build().unwrap();
    let error = local(&registry, folder.path()).unwrap_err();
    assert_eq!(error.kind(), "digest-missing");
    assert!(error.hint().unwrap().contains("kernel-builder"));
}

#[test]
fn a_folder_that_holds_no_kernel_is_refused_with_what_one_looks_like() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let registry = alone(&folder.path().join("cache")).build().unwrap();
    for path in [folder.path().to_owned(), folder.path().join("none"), file] {
        let error = local(&registry, &path).unwrap_err();
        assert_eq!(error.kind(), "local-kernel", "{error}");
        assert!(error.to_string().contains(&path.display().to_string()));
        assert!(error.hint().unwrap().contains("metadata.json"));
    }
    fs::create_dir_all(folder.path().join("build/torch-cpu")).unwrap();
    let error = local(&registry, folder.path()).unwrap_err();
    assert_eq!(error.kind(), "metadata-missing", "{error}");
}

#[test]
fn a_folder_without_a_build_for_this_machine_is_refused_with_the_reasons() {
    let folder = tempfile::tempdir().unwrap();
    samples::relu_tpu()
        .write_branch("v1", folder.path())
        .unwrap();
    let registry = alone(&folder.path().join("cache")).build().unwrap();
    let error = local(&registry, folder.path()).unwrap_err();
    assert_eq!(error.kind(), "no-variant");
    assert!(error.to_string().contains("torch-tpu"), "{error}");
}

#[test]
fn an_override_takes_the_place_of_a_repository_and_is_said() {
    let scene = Scene::new();
    let folder = tempfile::tempdir().unwrap();
    samples::relu().write_branch("v2", folder.path()).unwrap();
    let kernels = [("someone/relu".parse().unwrap(), folder.path().to_owned())];
    let (registry, events) = listen(scene.builder().local_kernels(kernels));
    // Neither the version nor the publisher counts.
    let installed = fetch(&registry, "someone/relu@v1").unwrap();
    assert_eq!(installed.resolved.origin, Origin::Local);
    assert_eq!(installed.resolved.trust, Trust::Local);
    let verified = installed.verified().unwrap();
    assert_eq!(verified.repository().unwrap().to_string(), "someone/relu");
    assert_eq!(verified.metadata().version, 2);
    assert!(scene.hub.requests().is_empty());
    let events = events.lock().unwrap();
    assert!(
        events.iter().any(|event| matches!(event, Event::Note(text)
            if text.contains("someone/relu") && text.contains("without a check"))),
        "{events:?}"
    );
}

#[test]
fn an_override_serves_a_kernel_that_another_one_needs() {
    let scene = Scene::new();
    let folder = tempfile::tempdir().unwrap();
    samples::relu().write_branch("v1", folder.path()).unwrap();
    let kernels = [(
        "kernels-test/leaf".parse().unwrap(),
        folder.path().to_owned(),
    )];
    let registry = scene.builder().local_kernels(kernels).build().unwrap();
    let installed = fetch(&registry, "kernels-test/top@v1").unwrap();
    let verified = installed.verified().unwrap();
    assert_eq!(verified.dependencies()[0].trust(), Trust::Local);
    let lines = scene.hub.request_lines();
    assert!(!lines.iter().any(|line| line.contains("leaf")), "{lines:?}");
}

#[test]
fn an_override_that_is_not_there_is_an_error_not_a_fetch() {
    let scene = Scene::new();
    let kernels = [(
        "kernels-test/relu".parse().unwrap(),
        "/no/such/folder".into(),
    )];
    let registry = scene.builder().local_kernels(kernels).build().unwrap();
    let error = fetch(&registry, "kernels-test/relu@v1").unwrap_err();
    assert_eq!(error.kind(), "local-kernel");
    assert!(error.to_string().contains("/no/such/folder"), "{error}");
    assert!(scene.hub.requests().is_empty());
}

#[test]
fn the_kernels_in_the_program_need_neither_network_nor_cache() {
    for backend in [Backend::Tpu, Backend::Cpu] {
        let variant = format!("torch-{}", backend.kind());
        let folder = tempfile::tempdir().unwrap();
        let cache = folder.path().join("cache");
        let machine = System::new("x86_64", "linux", backend);
        let registry = alone(&cache).system(machine).build().unwrap();
        let mut count = 0;
        for entry in registry.index().unwrap().repositories() {
            if entry.origin != IndexOrigin::Embedded {
                continue;
            }
            count += 1;
            let name = entry.repository.to_string();
            let first = fetch(&registry, &name).unwrap();
            assert_eq!(first.resolved.origin, Origin::Index, "{name}");
            assert_eq!(first.resolved.variant, variant, "{name}");
            assert!(!first.cached);
            let verified = first.verified().unwrap();
            assert_eq!(verified.trust(), Trust::Index);
            assert_eq!(verified.commit(), first.resolved.commit.as_ref());
            assert!(verified.files().contains_key("__init__.py"), "{name}");
            for (file, bytes) in verified.files() {
                assert_eq!(&**bytes, fs::read(first.path.join(file)).unwrap(), "{file}");
            }
            let again = fetch(&registry, &name).unwrap();
            assert!(again.cached);

            // What was changed on disk since is put right, because the program has the bytes.
            fs::write(first.path.join("__init__.py"), "import os\n").unwrap();
            fetch(&registry, &name).unwrap().verified().unwrap();
        }
        assert!(count >= 5, "{count} kernels for {variant}");
        let written = files(&cache);
        assert!(written.keys().any(|path| path.ends_with("refs/v1")));
    }
}

#[test]
fn a_version_that_the_program_does_not_have_is_not_looked_for_elsewhere() {
    let scene = Scene::new();
    let error = fetch(&scene.registry(), "hub-kernels/rms-norm@v99").unwrap_err();
    assert_eq!(error.kind(), "version-not-found");
    assert!(error.to_string().contains("available: 1"), "{error}");
    assert!(scene.hub.requests().is_empty());
}
