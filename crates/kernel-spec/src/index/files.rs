//! Finding one repository among many, without reading the others.
//!
//! A program that resolves one kernel needs one file of the index. Reading a hundred thousand of them
//! first takes longer than all else that it does.

use super::document::RepositoryEntry;
use super::merge::read_repository;
use super::repository_file_name;
use crate::error::{Error, Result};
use crate::repository::RepositoryId;

/// The files of an index by name and content, each of which is read when it is asked for.
///
/// What only all files together can show is checked by [`Index::from_files`](super::Index::from_files);
/// whoever makes an index calls that once.
#[derive(Debug, Clone, Copy)]
pub struct IndexFiles<'a> {
    files: &'a [(&'a str, &'a [u8])],
}

impl<'a> IndexFiles<'a> {
    /// Takes files that are sorted by name, bytewise.
    ///
    /// # Errors
    ///
    /// If they are not sorted, or two have one name: a search would miss some.
    pub fn sorted(files: &'a [(&'a str, &'a [u8])]) -> Result<Self> {
        let misplaced = files.windows(2).find(|pair| pair[0].0 >= pair[1].0);
        match misplaced {
            None => Ok(Self { files }),
            Some(pair) => Err(Error::Index {
                file: pair[1].0.to_owned(),
                reason: format!(
                    "it comes after `{}`: files are not sorted by name",
                    pair[0].0
                ),
            }),
        }
    }

    /// A repository's entry; none where it has no file.
    ///
    /// # Errors
    ///
    /// If its file is not a sound entry of it.
    ///
    /// ```
    /// use kernel_spec::index::IndexFiles;
    ///
    /// let files: &[(&str, &[u8])] = &[("a--damaged.json", b"{"), ("a--other.json", b"{")];
    /// let files = IndexFiles::sorted(files)?;
    /// assert!(files.repository(&"a/damaged".parse()?).is_err());
    /// assert!(files.repository(&"a/missing".parse()?)?.is_none());
    /// # Ok::<(), kernel_spec::Error>(())
    /// ```
    pub fn repository(&self, repository: &RepositoryId) -> Result<Option<RepositoryEntry>> {
        let wanted = repository_file_name(repository);
        let found = self
            .files
            .binary_search_by(|(name, _)| (*name).cmp(wanted.as_str()));
        let Ok(position) = found else {
            return Ok(None);
        };
        let (name, bytes) = self.files[position];
        read_repository(name, bytes).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_out_of_order_or_given_twice_are_refused() {
        let one: (&str, &[u8]) = ("a--one.json", b"{}");
        let two: (&str, &[u8]) = ("a--two.json", b"{}");
        assert!(IndexFiles::sorted(&[one, two]).is_ok());
        for wrong in [[two, one], [one, one]] {
            let error = IndexFiles::sorted(&wrong).unwrap_err().to_string();
            assert!(
                error.contains("a--one.json") && error.contains("not sorted"),
                "{error}"
            );
        }
    }
}
