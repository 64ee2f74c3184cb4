//! One safetensors file.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, Metadata};
use tch::{Device, Kind, Tensor};

use crate::error::{ModelError, Result};

/// Longest header that is read, in bytes: the limit of the safetensors library.
const MAX_HEADER: u64 = 100_000_000;

/// A safetensors file whose header was read and checked, with its data mapped.
#[derive(Debug)]
pub(super) struct WeightFile {
    path: PathBuf,
    metadata: Metadata,
    data_start: u64,
    length: u64,
    mapping: Tensor,
}

impl WeightFile {
    /// Reads the header, checks it against the size of the file, and maps the file.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let read_error = |source| ModelError::Read {
            path: path.to_owned(),
            source,
        };
        let invalid = |problem: String| ModelError::InvalidFile {
            path: path.to_owned(),
            problem,
        };

        let mut file = File::open(path).map_err(read_error)?;
        let length = file.metadata().map_err(read_error)?.len();
        if length < 8 {
            return Err(invalid(format!(
                "it has {length} bytes, too few for a header"
            )));
        }
        let mut size = [0; 8];
        file.read_exact(&mut size).map_err(read_error)?;
        let header_length = u64::from_le_bytes(size);
        if header_length > MAX_HEADER || header_length > length - 8 {
            return Err(invalid(format!(
                "its header claims {header_length} bytes, the file has {length}"
            )));
        }
        let mut header = vec![0; header_length as usize];
        file.read_exact(&mut header).map_err(read_error)?;
        let metadata: Metadata = serde_json::from_slice(&header)
            .map_err(|error| invalid(format!("its header cannot be read: {error}")))?;

        let data_start = 8 + header_length;
        let expected = data_start + metadata.data_len() as u64;
        if expected != length {
            return Err(invalid(format!(
                "its header describes {expected} bytes, the file has {length}"
            )));
        }
        let Some(name) = path.to_str() else {
            return Err(invalid("its path is not UTF-8".to_owned()));
        };
        // Private mapping: pages come from the file, a write would copy, and libtorch unmaps it
        // when the last tensor over it is gone.
        let mapping = Tensor::f_from_file(name, false, length as i64, (Kind::Uint8, Device::Cpu))?;
        Ok(Self {
            path: path.to_owned(),
            metadata,
            data_start,
            length,
            mapping,
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn bytes(&self) -> u64 {
        self.length
    }

    pub(super) fn names(&self) -> impl Iterator<Item = String> {
        self.metadata.offset_keys().into_iter()
    }

    pub(super) fn shape(&self, name: &str) -> Option<Vec<i64>> {
        let info = self.metadata.info(name)?;
        Some(info.shape.iter().map(|size| *size as i64).collect())
    }

    /// libtorch's name for the dtype of a tensor, if it can be a weight.
    pub(super) fn kind(&self, name: &str) -> Option<Kind> {
        match self.metadata.info(name)?.dtype {
            Dtype::F32 => Some(Kind::Float),
            Dtype::BF16 => Some(Kind::BFloat16),
            Dtype::F16 => Some(Kind::Half),
            Dtype::F64 => Some(Kind::Double),
            _ => None,
        }
    }

    /// Fails where a tensor holds something else than floating-point numbers.
    pub(super) fn check_dtype(&self, name: &str) -> Result<Kind> {
        self.kind(name).ok_or_else(|| ModelError::TensorDtype {
            path: self.path.clone(),
            name: name.to_owned(),
            dtype: self
                .metadata
                .info(name)
                .map_or_else(|| "unknown".to_owned(), |info| format!("{:?}", info.dtype)),
        })
    }

    /// A view of the mapping in the tensor's own dtype and shape.
    pub(super) fn tensor(&self, name: &str) -> Result<Tensor> {
        let kind = self.check_dtype(name)?;
        let (Some(info), Some(shape)) = (self.metadata.info(name), self.shape(name)) else {
            return Err(self.lacks(name));
        };
        let (start, end) = info.data_offsets;
        let (offset, length) = (self.data_start as i64 + start as i64, (end - start) as i64);
        let bytes = if offset % (info.dtype.bitsize() as i64 / 8) == 0 {
            self.mapping.f_narrow(0, offset, length)?
        } else {
            // Not written by a current safetensors, which aligns data; a copy is aligned.
            self.mapping.f_narrow_copy(0, offset, length)?
        };
        Ok(bytes.f_view_dtype(kind)?.f_view(shape.as_slice())?)
    }

    fn lacks(&self, name: &str) -> ModelError {
        ModelError::InvalidFile {
            path: self.path.clone(),
            problem: format!("it lacks tensor `{name}`"),
        }
    }
}
