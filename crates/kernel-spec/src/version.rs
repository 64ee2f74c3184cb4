//! The version numbers that occur in the kernel format.
//!
//! Four kinds, kept apart because their rules differ: the major version of a kernel, which is a
//! branch `v<N>`; the release of the `kernels` library that metadata asks for; the `major.minor` of
//! frameworks and backends that variant names carry; and the free-form version of an operating
//! system.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};
use crate::json::serde_as_string;

/// The release of the Python `kernels` library whose format and rules this crate follows.
pub const COMPATIBLE_KERNELS: ReleaseVersion = ReleaseVersion {
    major: 0,
    minor: 17,
    patch: 2,
};

/// The kernel version that a branch carries: `v1` is 1, `v01`, `v+1` and `release` are none.
///
/// The Python library takes whatever its `int()` takes, so that `v1_0` is version 10 there; only
/// the canonical spelling counts here, and any other branch can be named as a revision.
///
/// ```
/// use kernel_spec::version::version_of_branch;
///
/// assert_eq!(version_of_branch("v12"), Some(12));
/// assert_eq!(version_of_branch("v012"), None);
/// ```
pub fn version_of_branch(branch: &str) -> Option<u64> {
    let digits = branch.strip_prefix('v')?;
    let canonical = digits == "0" || !digits.starts_with('0');
    if canonical && is_digits(digits) {
        digits.parse().ok()
    } else {
        None
    }
}

/// The branch of a kernel version.
pub fn branch_of_version(version: u64) -> String {
    format!("v{version}")
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// A release of the `kernels` library, exactly three numbers (`kernels-minver` in metadata).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReleaseVersion {
    /// First number.
    pub major: u64,
    /// Second number.
    pub minor: u64,
    /// Third number.
    pub patch: u64,
}

impl FromStr for ReleaseVersion {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let invalid = |reason| Error::Version {
            text: text.to_owned(),
            reason,
        };
        let mut parts = text.trim().split('.').map(|part| {
            // Numbers only: Rust's own parser would also take a leading `+`.
            if is_digits(part) {
                part.parse::<u64>().ok()
            } else {
                None
            }
        });
        let (Some(major), Some(minor), Some(patch), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(invalid("expected three numbers separated by dots"));
        };
        match (major, minor, patch) {
            (Some(major), Some(minor), Some(patch)) => Ok(Self {
                major,
                minor,
                patch,
            }),
            _ => Err(invalid(
                "expected three numbers separated by dots, without suffixes",
            )),
        }
    }
}

impl fmt::Display for ReleaseVersion {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

serde_as_string!(ReleaseVersion);

/// Major and minor version of a framework or of a backend's toolkit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MajorMinor {
    /// First number.
    pub major: u64,
    /// Second number.
    pub minor: u64,
}

impl MajorMinor {
    /// Both numbers.
    pub const fn new(major: u64, minor: u64) -> Self {
        Self { major, minor }
    }
}

impl FromStr for MajorMinor {
    type Err = Error;

    /// Takes the first two numbers of a release: `2.10`, `2.13.0+cu130` and `2.9.0a0` all do.
    fn from_str(text: &str) -> Result<Self> {
        let invalid = || Error::Version {
            text: text.to_owned(),
            reason: "expected `major.minor`",
        };
        let (major, rest) = text.split_once('.').ok_or_else(invalid)?;
        let end = rest
            .find(|character: char| !character.is_ascii_digit())
            .unwrap_or(rest.len());
        let minor = &rest[..end];
        if !is_digits(major) || !is_digits(minor) {
            return Err(invalid());
        }
        match (major.parse(), minor.parse()) {
            (Ok(major), Ok(minor)) => Ok(Self { major, minor }),
            _ => Err(Error::Version {
                text: text.to_owned(),
                reason: "the number is too large",
            }),
        }
    }
}

impl fmt::Display for MajorMinor {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{}", self.major, self.minor)
    }
}

serde_as_string!(MajorMinor);

/// Version of an operating system: one or more numbers. Trailing zeros do not count in comparisons.
#[derive(Debug, Clone)]
pub struct DottedVersion(Vec<u64>);

impl DottedVersion {
    /// A version of two numbers.
    pub fn new(major: u64, minor: u64) -> Self {
        Self(vec![major, minor])
    }

    fn significant(&self) -> &[u64] {
        let end = self
            .0
            .iter()
            .rposition(|number| *number != 0)
            .map_or(0, |index| index + 1);
        &self.0[..end]
    }
}

impl FromStr for DottedVersion {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        text.split('.')
            .map(|part| {
                if is_digits(part) {
                    part.parse().ok()
                } else {
                    None
                }
            })
            .collect::<Option<Vec<u64>>>()
            .map(Self)
            .ok_or(Error::Version {
                text: text.to_owned(),
                reason: "expected numbers separated by dots",
            })
    }
}

impl fmt::Display for DottedVersion {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, number) in self.0.iter().enumerate() {
            write!(formatter, "{}{number}", if index == 0 { "" } else { "." })?;
        }
        Ok(())
    }
}

impl PartialEq for DottedVersion {
    fn eq(&self, other: &Self) -> bool {
        self.significant() == other.significant()
    }
}

impl Eq for DottedVersion {}

impl PartialOrd for DottedVersion {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for DottedVersion {
    fn cmp(&self, other: &Self) -> Ordering {
        self.significant().cmp(other.significant())
    }
}

impl std::hash::Hash for DottedVersion {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.significant().hash(state);
    }
}

serde_as_string!(DottedVersion);

#[cfg(test)]
mod tests {
    use super::*;

    /// Branch names that the Python library takes for versions.
    #[test]
    fn peer_fault_39_only_canonical_branches_are_versions() {
        for branch in [
            "v01", "v-1", "v1_0", "v 2", "v+3", "v１", "v", "1", "V1", "v1.0",
        ] {
            assert_eq!(version_of_branch(branch), None, "{branch}");
        }
        assert_eq!(version_of_branch("v0"), Some(0));
        assert_eq!(version_of_branch("v18446744073709551615"), Some(u64::MAX));
        assert_eq!(version_of_branch("v18446744073709551616"), None);
    }

    #[test]
    fn a_release_has_three_numbers() {
        assert_eq!(" 0.017.2 ".parse(), Ok(COMPATIBLE_KERNELS));
        for text in [
            "",
            "0.17",
            "0.17.0.dev0",
            "v0.17.0",
            "0.17.-1",
            "0.17.+1",
            "1.2.3.4",
        ] {
            assert!(text.parse::<ReleaseVersion>().is_err(), "{text}");
        }
        assert!(
            "99999999999999999999.0.0"
                .parse::<ReleaseVersion>()
                .is_err()
        );
    }

    #[test]
    fn major_and_minor_are_taken_from_a_release() {
        for text in ["2.13", "2.13.0+cu130", "2.13.0a0+git1", "2.13rc1"] {
            assert_eq!(text.parse(), Ok(MajorMinor::new(2, 13)), "{text}");
        }
        for text in [
            "",
            "2",
            "2.",
            ".1",
            "2.x",
            "two.1",
            "99999999999999999999.1",
        ] {
            assert!(text.parse::<MajorMinor>().is_err(), "{text}");
        }
    }

    #[test]
    fn trailing_zeros_do_not_count() {
        let version = |text: &str| text.parse::<DottedVersion>().unwrap();
        assert_eq!(version("26"), version("26.0.0"));
        assert!(version("15.7.1") < version("26.0"));
        assert_eq!(version("15.7.1").to_string(), "15.7.1");
        assert!("26.".parse::<DottedVersion>().is_err());
    }
}
