//! Signatures of kernels: Sigstore bundles over the bytes of `metadata.json`.
//!
//! The bundle beside the metadata says which workflow, at which commit, made those exact bytes, and
//! the metadata's digest covers every other file. Everything is checked without a network: the chain
//! of the certificate, its entry in the transparency log, and the signature itself, by
//! `sigstore-verify`; then, here, that the workflow is one that may sign ([`SignaturePolicy`]), and
//! that what it signed is the kernel that was asked for. The last step is not in the format: a bundle
//! names neither repository nor version nor build, so that a signed build could be passed off as
//! another one.

mod policy;

use std::fmt;

use kernel_spec::{Metadata, RepositoryId, Variant};
use serde::Serialize;
use sigstore_verify::VerificationPolicy;
use sigstore_verify::types::{Bundle, SignatureContent};

pub use policy::{AllowedSigner, GITHUB_ISSUER, SignaturePolicy};

/// Who made a signature, as its certificate says.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize)]
#[non_exhaustive]
pub struct Signer {
    /// Who vouches for the identity.
    pub issuer: Option<String>,
    /// The repository that was built.
    pub source_repository: Option<String>,
    /// The commit that was built.
    pub source_commit: Option<String>,
    /// The workflow that signed, with its ref; for a person, the address.
    pub workflow: Option<String>,
}

impl fmt::Display for Signer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self
            .workflow
            .as_deref()
            .or(self.source_repository.as_deref());
        write!(
            formatter,
            "`{}`",
            name.unwrap_or("somebody unnamed").escape_debug()
        )?;
        match &self.issuer {
            Some(issuer) => write!(formatter, " (known to `{}`)", issuer.escape_debug()),
            None => Ok(()),
        }
    }
}

/// What is known about a kernel's signature.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Signature {
    /// There is none.
    Unsigned,
    /// It holds, and was made by a workflow that may sign this kernel.
    Verified(Box<Signer>),
    /// It holds, and was made by somebody whose signatures are not accepted.
    UnknownSigner {
        /// Who made it.
        signer: Box<Signer>,
        /// Why it does not count.
        reason: String,
    },
    /// It holds, and is that of another kernel, version or build.
    OtherKernel {
        /// Who made it.
        signer: Box<Signer>,
        /// What differs.
        reason: String,
    },
    /// It does not hold.
    Invalid {
        /// Which check failed.
        reason: String,
    },
}

impl Signature {
    /// The word in machine-readable output.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Unsigned => "unsigned",
            Self::Verified(_) => "verified",
            Self::UnknownSigner { .. } => "unknown-signer",
            Self::OtherKernel { .. } => "other-kernel",
            Self::Invalid { .. } => "invalid",
        }
    }

    /// Whether it holds and counts.
    pub const fn is_verified(&self) -> bool {
        matches!(self, Self::Verified(_))
    }

    /// Who made it, where that is proven.
    pub fn signer(&self) -> Option<&Signer> {
        match self {
            Self::Verified(signer)
            | Self::UnknownSigner { signer, .. }
            | Self::OtherKernel { signer, .. } => Some(signer),
            Self::Unsigned | Self::Invalid { .. } => None,
        }
    }

    /// Why it does not count, where there is one that does not.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::UnknownSigner { reason, .. }
            | Self::OtherKernel { reason, .. }
            | Self::Invalid { reason } => Some(reason),
            Self::Unsigned | Self::Verified(_) => None,
        }
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

/// What a signature has to be about.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Subject<'a> {
    /// The repository; none for a folder.
    pub(crate) repository: Option<&'a RepositoryId>,
    /// The version, where one was asked for.
    pub(crate) version: Option<u64>,
    /// Name of the build's folder.
    pub(crate) variant: &'a str,
}

impl SignaturePolicy {
    /// Checks the bundle of a build: `metadata` are the bytes that it has to be over.
    pub(crate) fn check(
        &self,
        metadata: &[u8],
        bundle: Option<&[u8]>,
        subject: Subject<'_>,
    ) -> Signature {
        let Some(bundle) = bundle else {
            return Signature::Unsigned;
        };
        let signer = match self.made_by(metadata, bundle) {
            Ok(signer) => Box::new(signer),
            Err(reason) => return Signature::Invalid { reason },
        };
        if let Some(reason) = self.objection(&signer, subject.repository) {
            return Signature::UnknownSigner { signer, reason };
        }
        match other_kernel(metadata, subject) {
            Some(reason) => Signature::OtherKernel { signer, reason },
            None => Signature::Verified(signer),
        }
    }

    /// Checks a bundle over some bytes and says who made it.
    fn made_by(&self, bytes: &[u8], bundle: &[u8]) -> Result<Signer, String> {
        let text = std::str::from_utf8(bundle).map_err(|_| "it is not UTF-8".to_owned())?;
        let bundle = Bundle::from_json(text)
            .map_err(|error| format!("it is not a Sigstore bundle: {error}"))?;
        // An attestation is signed over a statement of its own, in which the metadata's hash would
        // be one subject of many.
        if !matches!(bundle.content, SignatureContent::MessageSignature(_)) {
            return Err("it is an attestation, not a signature over `metadata.json`".to_owned());
        }
        let verifier = self.verifier().map_err(str::to_owned)?;
        let checked = verifier
            .verify(bytes, &bundle, &VerificationPolicy::any_identity())
            .map_err(|error| error.to_string())?;
        let complete =
            checked.certificate_verified() && checked.sct_verified() && checked.tlog_verified();
        let certificate = checked.certificate().filter(|_| complete);
        let Some(certificate) = certificate else {
            return Err("not all of its evidence could be checked".to_owned());
        };
        let claims = &certificate.ci_claims;
        let identity = || {
            checked
                .identity()
                .map(|identity| identity.as_str().to_owned())
        };
        Ok(Signer {
            issuer: checked.issuer().map(str::to_owned),
            source_repository: claims.source_repository_uri.clone(),
            source_commit: claims.source_repository_digest.clone(),
            workflow: claims.build_signer_uri.clone().or_else(identity),
        })
    }
}

/// What differs between signed metadata and the kernel that was asked for.
fn other_kernel(metadata: &[u8], subject: Subject<'_>) -> Option<String> {
    let Ok(metadata) = Metadata::from_slice(metadata) else {
        return Some("what was signed is not a kernel's metadata".to_owned());
    };
    if let Some(repository) = subject.repository {
        let expected = repository.name().to_lowercase().replace(['_', '.'], "-");
        let name = metadata.name.as_str();
        if name != expected {
            return Some(format!(
                "it was signed for the kernel `{name}`, not `{expected}`"
            ));
        }
    }
    if let Some(version) = subject
        .version
        .filter(|version| *version != metadata.version)
    {
        let signed = metadata.version;
        return Some(format!("it was signed for version {signed}, not {version}"));
    }
    // A folder of any other name says nothing of a backend.
    let backend = match subject.variant.parse() {
        Ok(Variant::Arch { backend, .. }) => backend.kind().as_str().to_owned(),
        Ok(Variant::Noarch { backend }) if backend == "npu" => "cann".to_owned(),
        Ok(Variant::Noarch { backend }) if backend != "universal" => backend,
        _ => return None,
    };
    let signed = metadata.backend.kind.as_str();
    (signed != backend).then(|| {
        let variant = subject.variant;
        format!("it was signed for the backend {signed}, and `{variant}` is for {backend}")
    })
}
