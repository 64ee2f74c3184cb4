//! Checks on metadata and signatures that hold wherever a kernel comes from.

use std::path::Path;

use kernel_spec::Metadata;
use kernel_spec::path::SIGNATURE_FILE;
use kernel_spec::version::{COMPATIBLE_KERNELS, ReleaseVersion};

use crate::error::{Error, Result};
use crate::python_depends;
use crate::registry::Registry;
use crate::resolved::{Signature, Trust};

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

    /// What is known about the signature of a build in a folder.
    pub(crate) fn check_signature(&self, kernel: &str, folder: &Path) -> Result<Signature> {
        self.signature(
            kernel,
            folder.join(SIGNATURE_FILE).is_file(),
            Trust::Publisher,
        )
    }

    /// What is known about a signature. The index is compiled into the program, which is what a
    /// signature would be checked with, so that its word is as good.
    pub(super) fn signature(&self, kernel: &str, present: bool, trust: Trust) -> Result<Signature> {
        if self.settings().require_signed && trust != Trust::Index {
            return Err(Error::SignatureRequired {
                kernel: kernel.to_owned(),
            });
        }
        Ok(if present {
            Signature::Unchecked
        } else {
            Signature::Unsigned
        })
    }
}

/// `kernels-minver` of metadata that may hold things which are unknown here.
fn needed_release(bytes: &[u8]) -> Option<ReleaseVersion> {
    let value: serde_json::Value = serde_json::from_slice(bytes).ok()?;
    value.get("kernels-minver")?.as_str()?.parse().ok()
}
