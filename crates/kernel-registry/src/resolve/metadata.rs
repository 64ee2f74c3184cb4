//! Checks on metadata and signatures that hold wherever a kernel comes from.

use std::fs;
use std::path::Path;

use kernel_spec::Metadata;
use kernel_spec::path::SIGNATURE_FILE;
use kernel_spec::version::{COMPATIBLE_KERNELS, ReleaseVersion};

use super::Purpose;
use crate::cache::is_absent;
use crate::error::{Error, Result};
use crate::python_depends;
use crate::registry::Registry;
use crate::resolved::{Documents, Trust};
use crate::signature::{Signature, Subject};

impl Registry {
    /// Reads metadata and refuses what could not be loaded. A kernel of a later format is told
    /// apart from a broken one even where its metadata has things that are unknown here.
    pub(crate) fn check_metadata(&self, kernel: &str, bytes: &[u8]) -> Result<Metadata> {
        let metadata = Metadata::from_slice(bytes).map_err(|error| match needed_release(bytes) {
            Some(required) if required > COMPATIBLE_KERNELS => kernel_spec::Error::TooNew {
                name: kernel.to_owned(),
                required,
                supported: COMPATIBLE_KERNELS,
            },
            _ => error,
        });
        let metadata = metadata.map_err(Error::format(format!("`{kernel}`")))?;
        metadata
            .check_compatible(COMPATIBLE_KERNELS)
            .map_err(Error::format(format!("`{kernel}`")))?;
        python_depends::packages(kernel, &metadata)?;
        if let Some(provenance) = &metadata.provenance
            && provenance.is_dirty()
        {
            self.events().warn(format!(
                "`{kernel}` was built from sources with changes that are in no commit"
            ));
        }
        Ok(metadata)
    }

    /// Checks what a build says of itself: its metadata, and the signature over it. What the index
    /// vouches for needs no signature: the index is compiled into the program, which is what a
    /// signature would be checked with.
    pub(crate) fn check_documents(
        &self,
        kernel: &str,
        documents: &Documents,
        subject: Subject<'_>,
        trust: Trust,
        purpose: Purpose,
    ) -> Result<(Metadata, Signature)> {
        let metadata = match purpose {
            Purpose::Run => self.check_metadata(kernel, &documents.metadata)?,
            Purpose::Look => Metadata::from_slice(&documents.metadata)
                .map_err(Error::format(format!("`{kernel}`")))?,
        };
        let signature = self.settings().signatures.check(
            &documents.metadata,
            documents.signature.as_deref(),
            subject,
        );
        if purpose == Purpose::Look {
            return Ok((metadata, signature));
        }
        let required = self.settings().require_signed && trust != Trust::Index;
        match &signature {
            Signature::Unsigned if required => {
                return Err(Error::SignatureRequired {
                    kernel: kernel.to_owned(),
                });
            }
            Signature::UnknownSigner { reason, .. }
            | Signature::OtherKernel { reason, .. }
            | Signature::Invalid { reason }
                if required =>
            {
                return Err(Error::BadSignature {
                    kernel: kernel.to_owned(),
                    reason: reason.clone(),
                });
            }
            Signature::Verified(_) | Signature::Unsigned | Signature::UnknownSigner { .. } => {}
            Signature::OtherKernel { reason, .. } | Signature::Invalid { reason } => {
                self.events().warn(format!(
                    "the signature of `{kernel}` does not count: {reason}; signatures are not \
                     required, so that the kernel is used"
                ));
            }
        }
        Ok((metadata, signature))
    }
}

impl Documents {
    /// Metadata that was read, with the signature beside it in a folder, if there is one.
    pub(crate) fn in_folder(metadata: Vec<u8>, folder: &Path) -> Result<Self> {
        let path = folder.join(SIGNATURE_FILE);
        let signature = match fs::read(&path) {
            Ok(bytes) => Some(bytes.into()),
            Err(error) if is_absent(&error) => None,
            Err(error) => return Err(Error::io("read", &path)(error)),
        };
        Ok(Self {
            metadata: metadata.into(),
            signature,
        })
    }
}

/// `kernels-minver` of metadata that may hold things which are unknown here.
fn needed_release(bytes: &[u8]) -> Option<ReleaseVersion> {
    let value: serde_json::Value = serde_json::from_slice(bytes).ok()?;
    value.get("kernels-minver")?.as_str()?.parse().ok()
}
