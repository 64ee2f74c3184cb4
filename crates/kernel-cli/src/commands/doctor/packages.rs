//! Versions of Python packages: found, wanted, and what goes wrong where they differ.
//!
//! What is wanted is read from `python-requirements.txt`, the one place that says it.

use kernel_registry::system::python::PythonEnvironment;

use super::{Check, ENVIRONMENT_HINT};

const REQUIREMENTS: &str = include_str!("../../../../../python-requirements.txt");

/// A package that takes part in running kernels.
struct Package {
    name: &'static str,
    /// Whether it is needed where there is no TPU.
    always: bool,
    /// What another version does.
    otherwise: &'static str,
}

const PACKAGES: [Package; 5] = [
    Package {
        name: "torch",
        always: true,
        otherwise: "tch is made for one release of libtorch, and another one lacks symbols of it",
    },
    Package {
        name: "jax",
        always: true,
        otherwise: "kernels are tested with this release",
    },
    Package {
        name: "jaxlib",
        always: true,
        otherwise: "jaxlib must be of the same release as jax",
    },
    Package {
        name: "libtpu",
        always: false,
        otherwise: "a compiler that is older than jax refuses its programs (\"Unsupported version\")",
    },
    Package {
        name: "torch-tpu",
        always: false,
        otherwise: "the way into torch_tpu's decorators was tried with this release",
    },
];

/// The checks of an environment's packages.
pub(super) fn checks(environment: Option<&PythonEnvironment>, has_tpu: bool) -> Vec<Check> {
    let found = |name: &str| environment.and_then(|environment| environment.version(name));
    PACKAGES
        .iter()
        .map(|package| {
            let mut check = judge(package, found(package.name), has_tpu);
            if let Some(problem) = problem(package.name, found("jax"), found("torch"), environment)
            {
                check.ok = false;
                check.hint = Some(problem);
            }
            check
        })
        .collect()
}

/// A version is compared without its local part (`2.13.0+cpu`).
fn judge(package: &Package, found: Option<&str>, has_tpu: bool) -> Check {
    let wanted = pinned(REQUIREMENTS, package.name);
    let is_wanted = found.is_some_and(|found| found.split('+').next() == wanted);
    let is_needed = package.always || has_tpu;
    let hint = match found {
        Some(_) => format!("{}; {ENVIRONMENT_HINT}", package.otherwise),
        None => ENVIRONMENT_HINT.to_owned(),
    };
    Check {
        name: package.name,
        ok: is_wanted || (!is_needed && found.is_none()),
        found: found
            .or((!is_needed).then_some("none, and not needed without a TPU"))
            .map(str::to_owned),
        wanted: wanted.map(str::to_owned),
        hint: Some(hint),
    }
}

/// What is wrong about versions that are installed side by side.
fn problem(
    name: &str,
    jax: Option<&str>,
    torch: Option<&str>,
    environment: Option<&PythonEnvironment>,
) -> Option<String> {
    let installed = environment?.version(name)?;
    match name {
        "jax" if installed.starts_with("0.11.") || installed.starts_with("0.12.") => Some(format!(
            "jax {installed} computes kernels with several grids wrongly (jax-ml/jax#40847); \
             {ENVIRONMENT_HINT}"
        )),
        "jaxlib" if jax.is_some_and(|jax| jax != installed) => Some(format!(
            "jax is {}, and jaxlib must be of the same release; {ENVIRONMENT_HINT}",
            jax.unwrap_or_default()
        )),
        "torch-tpu" => {
            let torch = torch?.split('+').next()?;
            let glue = format!(
                "torch_tpu/_internal/pallas/tpu_torch_pallas_{}.so",
                torch.replace('.', "_")
            );
            let is_there = environment?.site_packages().join(&glue).is_file();
            (!is_there).then(|| {
                format!(
                    "torch_tpu {installed} has no library for torch {torch} (`{glue}`); \
                     {ENVIRONMENT_HINT}"
                )
            })
        }
        _ => None,
    }
}

/// The version that a requirements file pins a package to.
fn pinned<'a>(requirements: &'a str, name: &str) -> Option<&'a str> {
    requirements.lines().find_map(|line| {
        let (package, rest) = line.split_once("==")?;
        let is_it = package.trim().eq_ignore_ascii_case(name);
        is_it.then(|| rest.split([';', ' ']).next().unwrap_or(rest).trim())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn environment(packages: &[&str]) -> (tempfile::TempDir, PythonEnvironment) {
        let root = tempfile::tempdir().unwrap();
        let site = root.path().join("lib/python3.11/site-packages");
        fs::create_dir_all(&site).unwrap();
        for package in packages {
            fs::create_dir(site.join(format!("{package}.dist-info"))).unwrap();
        }
        let found = PythonEnvironment::at(root.path()).unwrap();
        (root, found)
    }

    fn of<'a>(checks: &'a [Check], name: &str) -> &'a Check {
        checks.iter().find(|check| check.name == name).unwrap()
    }

    #[test]
    fn every_package_is_pinned() {
        for package in &PACKAGES {
            assert!(
                pinned(REQUIREMENTS, package.name).is_some(),
                "{}",
                package.name
            );
        }
        let text = "# torch==1\ntorch==2.13.0\nlibtpu==0.0.52 ; platform_machine == \"x86_64\"\n";
        assert_eq!(pinned(text, "torch"), Some("2.13.0"));
        assert_eq!(pinned(text, "libtpu"), Some("0.0.52"));
        assert_eq!(pinned(text, "jax"), None);
    }

    #[test]
    fn versions_that_do_not_go_together_are_explained() {
        let (root, environment) = environment(&[
            "torch-2.13.0+cpu",
            "jax-0.11.1",
            "jaxlib-0.10.2",
            "torch_tpu-0.2.0",
        ]);
        let checks = checks(Some(&environment), false);
        assert!(of(&checks, "torch").ok);
        for (name, words) in [
            ("jax", "jax-ml/jax#40847"),
            ("jaxlib", "jax is 0.11.1"),
            ("torch-tpu", "no library for torch 2.13.0"),
        ] {
            let check = of(&checks, name);
            assert!(!check.ok, "{check:?}");
            assert!(check.hint.as_ref().unwrap().contains(words), "{check:?}");
        }
        let libtpu = of(&checks, "libtpu");
        assert!(libtpu.ok && libtpu.found.as_ref().unwrap().contains("not needed"));
        let glue = root
            .path()
            .join("lib/python3.11/site-packages/torch_tpu/_internal/pallas");
        fs::create_dir_all(&glue).unwrap();
        fs::write(glue.join("tpu_torch_pallas_2_13_0.so"), "").unwrap();
        let checks = super::checks(Some(&environment), false);
        assert!(of(&checks, "torch-tpu").ok, "{checks:?}");
    }

    #[test]
    fn a_tpu_makes_its_packages_needed() {
        let (_root, environment) = environment(&["torch-2.13.0"]);
        let checks = checks(Some(&environment), true);
        assert!(!of(&checks, "libtpu").ok);
        assert!(!of(&checks, "torch-tpu").ok);
    }
}
