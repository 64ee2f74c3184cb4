//! Kernel trees for the usual cases and for the odd ones.
//!
//! All kernels are plain Python, so that they can be loaded on any machine with PyTorch.

use kernel_spec::metadata::{BuilderProvenance, GitState, Provenance};
use kernel_spec::{Dependency, ReleaseVersion, Requirement};

use crate::kernel::{Build, KernelTree};

/// Source of a kernel with a function `relu`, a layer `ReLU`, and its version.
fn relu_source(version: u64) -> String {
    format!(
        "\"\"\"Rectified linear unit.\"\"\"\n\nfrom . import layers\n\nVERSION = {version}\n\n\n\
         def relu(x):\n    return x.clamp(min=0)\n\n\n__all__ = [\"layers\", \"relu\"]\n"
    )
}

/// Source of its layers.
const RELU_LAYERS: &str = "from torch import nn\n\n\nclass ReLU(nn.Module):\n    \
     can_torch_compile = True\n\n    def forward(self, x):\n        return x.clamp(min=0)\n";

/// A build of the relu kernel: Python files, and two files that are kept in LFS.
pub fn relu_build(variant: &str, version: u64) -> Build {
    Build::new(variant)
        .file("__init__.py", relu_source(version))
        .file("layers/__init__.py", RELU_LAYERS)
        .file("data/table.bin", (0_u8..=255).collect::<Vec<_>>().repeat(5))
        .file("_relu.abi3.so", "not really a library\n".repeat(8))
}

/// `kernels-test/relu`: two versions, noarch builds for five backends, a tag, and a card.
pub fn relu() -> KernelTree {
    let mut tree = KernelTree::new("kernels-test/relu")
        .file("main", "README.md", "# relu\n")
        .tag("release-1", "v1");
    for version in [1, 2] {
        for backend in ["cpu", "tpu", "cuda", "neuron", "npu"] {
            let build = relu_build(&format!("torch-{backend}"), version);
            tree = tree.build(format!("v{version}"), build);
        }
    }
    tree
}

/// `kernels-test/relu-tpu`: one build, for TPUs.
pub fn relu_tpu() -> KernelTree {
    KernelTree::new("kernels-test/relu-tpu").build("v1", relu_build("torch-tpu", 1))
}

/// `kernels-test/universal`: a build of the old kind, without digest.
pub fn universal() -> KernelTree {
    KernelTree::new("kernels-test/universal")
        .build("v1", relu_build("torch-universal", 1).without_digest())
}

/// `kernels-test/top` needs version 3 of `kernels-test/leaf`.
pub fn dependent() -> [KernelTree; 2] {
    let leaf = Build::new("torch-cpu").file("__init__.py", "def three():\n    return 3\n");
    let top = Build::new("torch-cpu")
        .file(
            "__init__.py",
            "from kernels import get_kernel_dep\n\nleaf = get_kernel_dep(\"kernels-test/leaf\")\n\n\n\
             def four():\n    return leaf.three() + 1\n",
        )
        .metadata(|metadata| metadata.kernel_depends.extend(dependency("kernels-test/leaf", 3)));
    [
        KernelTree::new("kernels-test/leaf").build("v3", leaf),
        KernelTree::new("kernels-test/top").build("v1", top),
    ]
}

/// `kernels-test/cycle-a` and `kernels-test/cycle-b` need each other.
pub fn cycle() -> [KernelTree; 2] {
    let build = || Build::new("torch-cpu").file("__init__.py", "");
    [
        KernelTree::new("kernels-test/cycle-a").build(
            "v1",
            build().metadata(|metadata| {
                metadata
                    .kernel_depends
                    .extend(dependency("kernels-test/cycle-b", 1));
            }),
        ),
        KernelTree::new("kernels-test/cycle-b").build(
            "v1",
            build().metadata(|metadata| {
                metadata
                    .kernel_depends
                    .extend(dependency("kernels-test/cycle-a", 1));
            }),
        ),
    ]
}

/// `kernels-test/old-name` has moved to version 2 of `kernels-test/relu`.
pub fn moved() -> KernelTree {
    const STATUS: &str =
        "kind = \"redirect\"\ndestination = \"kernels-test/relu\"\nrevision = \"v2\"\n";
    KernelTree::new("kernels-test/old-name")
        .file("main", "kernel-status.toml", STATUS)
        .file("v1", "kernel-status.toml", STATUS)
        .build("v1", relu_build("torch-cuda", 1))
}

/// `kernels-test/too-new` needs a release of the format that does not exist.
pub fn too_new() -> KernelTree {
    KernelTree::new("kernels-test/too-new").build(
        "v1",
        relu_build("torch-cpu", 1).metadata(|metadata| {
            metadata.kernels_minver = Some(ReleaseVersion {
                major: 99,
                minor: 1,
                patch: 0,
            });
        }),
    )
}

/// `kernels-test/dirty` was built from sources with local changes.
pub fn dirty() -> KernelTree {
    KernelTree::new("kernels-test/dirty").build(
        "v1",
        relu_build("torch-cpu", 1).metadata(|metadata| {
            let state = |digit: &str| {
                let commit = digit.repeat(40).parse().ok()?;
                Some(GitState {
                    commit,
                    dirty: true,
                })
            };
            metadata.provenance = Some(Provenance {
                kernel_builder: BuilderProvenance {
                    version: "0.17.2".to_owned(),
                    git: state("a"),
                },
                kernel: state("b"),
            });
        }),
    )
}

/// `kernels-test/tampered`: a file was changed after the digest was made.
pub fn tampered() -> KernelTree {
    KernelTree::new("kernels-test/tampered").build(
        "v1",
        relu_build("torch-cpu", 1).undigested("layers/__init__.py", "import os\n"),
    )
}

/// `kernels-test/bytecode`: a build with compiled Python beside its sources.
pub fn bytecode() -> KernelTree {
    KernelTree::new("kernels-test/bytecode").build(
        "v1",
        relu_build("torch-cpu", 1)
            .undigested("__pycache__/__init__.cpython-311.pyc", "no bytecode at all")
            .undigested("old.pyc", "no bytecode at all"),
    )
}

/// `kernels-test/python-depends` declares a package.
pub fn python_depends() -> KernelTree {
    KernelTree::new("kernels-test/python-depends").build(
        "v1",
        relu_build("torch-tpu", 1).metadata(|metadata| metadata.python_depends.push("jax".into())),
    )
}

/// `someone/relu`, of an owner that is not trusted.
pub fn of_someone() -> KernelTree {
    KernelTree::new("someone/relu").build("v1", relu_build("torch-cpu", 1))
}

/// Every tree of this module.
pub fn all() -> Vec<KernelTree> {
    let mut trees = vec![
        relu(),
        relu_tpu(),
        universal(),
        moved(),
        too_new(),
        dirty(),
        tampered(),
        bytecode(),
        python_depends(),
        of_someone(),
    ];
    trees.extend(dependent());
    trees.extend(cycle());
    trees
}

fn dependency(repository: &str, version: u64) -> Option<Dependency> {
    let repository = repository.parse().ok()?;
    Some(Dependency {
        repository,
        requirement: Requirement::Version(version),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sample_has_the_metadata_it_was_given() {
        for tree in all() {
            for branch in tree.branches() {
                for (path, content) in tree.branch_files(branch).unwrap() {
                    if path.ends_with("/metadata.json") {
                        let metadata = kernel_spec::Metadata::from_slice(&content).unwrap();
                        assert_eq!(metadata.check_module_id(), Ok(()));
                    }
                }
            }
        }
        let [_, top] = dependent();
        let files = top.branch_files("v1").unwrap();
        let metadata = &files["build/torch-cpu/metadata.json"];
        let metadata = kernel_spec::Metadata::from_slice(metadata).unwrap();
        assert_eq!(
            metadata.kernel_depends[0].to_string(),
            "kernels-test/leaf@v3"
        );
    }
}
