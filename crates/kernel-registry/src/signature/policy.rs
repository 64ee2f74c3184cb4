//! Whose signatures count: workflows that may sign, and the roots that vouch for their certificates.

use std::fmt;
use std::fs;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use kernel_spec::RepositoryId;
use serde::Deserialize;
use sigstore_verify::Verifier;
use sigstore_verify::trust_root::{SIGSTORE_PRODUCTION_TRUSTED_ROOT, TrustedRoot};

use super::Signer;
use crate::error::{Error, Result};

/// Issuer of the identities of GitHub's workflows.
pub const GITHUB_ISSUER: &str = "https://token.actions.githubusercontent.com";
/// Version of the policy's file format.
const FORMAT: u32 = 1;

/// The repository that `kernels` 0.17.2 accepts signatures from, and its workflows.
const COMMUNITY_SOURCE: &str = "https://github.com/huggingface/kernels-community";
const COMMUNITY_WORKFLOWS: [&str; 4] = [
    "build.yaml",
    "build-mac.yaml",
    "build-windows.yaml",
    "sign-old-builds.yaml",
];
/// The organisation on the Hub that these workflows publish to.
const COMMUNITY_OWNER: &str = "kernels-community";

/// A workflow that may sign kernels.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[non_exhaustive]
pub struct AllowedSigner {
    /// Who vouches for the workflow's identity; GitHub unless said otherwise.
    #[serde(default = "github_issuer")]
    pub issuer: String,
    /// Address of the repository that the workflow builds, `https://github.com/<owner>/<name>`.
    pub source_repository: String,
    /// The workflows with their refs,
    /// `https://github.com/<owner>/<name>/.github/workflows/<file>@refs/heads/<branch>`.
    pub workflows: Vec<String>,
    /// Owners on the Hub whose kernels it may sign; all where there are none.
    #[serde(default)]
    pub owners: Vec<String>,
}

fn github_issuer() -> String {
    GITHUB_ISSUER.to_owned()
}

impl AllowedSigner {
    /// Workflows of a repository on GitHub, for kernels of any owner.
    pub fn github(
        source_repository: impl Into<String>,
        workflows: impl IntoIterator<Item = String>,
    ) -> Self {
        Self {
            issuer: github_issuer(),
            source_repository: source_repository.into(),
            workflows: workflows.into_iter().collect(),
            owners: Vec::new(),
        }
    }

    /// The same, for kernels of one owner on the Hub.
    #[must_use]
    pub fn for_owner(mut self, owner: impl Into<String>) -> Self {
        self.owners.push(owner.into());
        self
    }

    /// Whether a signature was made by this signer.
    fn is(&self, signer: &Signer) -> bool {
        let source = signer.source_repository.as_ref();
        let workflow = signer.workflow.as_ref();
        signer.issuer.as_ref() == Some(&self.issuer)
            && source == Some(&self.source_repository)
            && workflow.is_some_and(|workflow| self.workflows.contains(workflow))
    }

    fn signs_for(&self, repository: Option<&RepositoryId>) -> bool {
        self.owners.is_empty()
            || repository.is_none_or(|repository| {
                self.owners.iter().any(|owner| owner == repository.owner())
            })
    }
}

/// Which signatures count. Cheap to clone.
///
/// The default accepts what `kernels` 0.17.2 accepts, the workflows of `huggingface/kernels-community`,
/// for kernels of the organisation `kernels-community`, and trusts the public Sigstore instance, whose
/// root is part of the program: nothing is asked for over the network.
///
/// ```
/// use kernel_registry::{AllowedSigner, SignaturePolicy};
///
/// let workflow = "https://github.com/org/kernels/.github/workflows/build.yaml@refs/heads/main";
/// let signer = AllowedSigner::github("https://github.com/org/kernels", [workflow.to_owned()]);
/// let policy = SignaturePolicy::new([signer.for_owner("org")]);
/// assert_eq!(policy.signers().len(), 1);
/// ```
#[derive(Clone)]
pub struct SignaturePolicy(Arc<Inner>);

struct Inner {
    signers: Vec<AllowedSigner>,
    /// JSON of the trusted root; none for the public instance's.
    root: Option<String>,
    verifier: OnceLock<std::result::Result<Verifier, String>>,
}

/// The file's content.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct PolicyFile {
    format: u32,
    signers: Vec<AllowedSigner>,
    trusted_root: Option<std::path::PathBuf>,
}

impl Default for SignaturePolicy {
    fn default() -> Self {
        let workflows = COMMUNITY_WORKFLOWS
            .map(|file| format!("{COMMUNITY_SOURCE}/.github/workflows/{file}@refs/heads/main"));
        let signer = AllowedSigner::github(COMMUNITY_SOURCE, workflows);
        Self::new([signer.for_owner(COMMUNITY_OWNER)])
    }
}

impl fmt::Debug for SignaturePolicy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("SignaturePolicy")
            .field("signers", &self.0.signers)
            .field("own_root", &self.0.root.is_some())
            .finish()
    }
}

impl SignaturePolicy {
    /// Accepts these signers, under the root of the public Sigstore instance.
    pub fn new(signers: impl IntoIterator<Item = AllowedSigner>) -> Self {
        Self(Arc::new(Inner {
            signers: signers.into_iter().collect(),
            root: None,
            verifier: OnceLock::new(),
        }))
    }

    /// The same signers under another root: the JSON of a `TrustedRoot`, for a Sigstore instance of
    /// one's own, or for a newer root than the one in the program.
    pub fn with_trusted_root(&self, json: impl Into<String>) -> Result<Self> {
        let policy = Self(Arc::new(Inner {
            signers: self.0.signers.clone(),
            root: Some(json.into()),
            verifier: OnceLock::new(),
        }));
        match policy.verifier() {
            Ok(_) => Ok(policy),
            Err(reason) => Err(Error::Setting {
                name: "trusted root".to_owned(),
                reason: reason.to_owned(),
            }),
        }
    }

    /// Reads a policy file: `format` (1), `signers`, and optionally `trusted-root`, the path of a
    /// trusted root relative to the file.
    pub fn read(path: &Path) -> Result<Self> {
        let invalid = |reason: String| Error::Setting {
            name: path.display().to_string(),
            reason,
        };
        let bytes = fs::read(path).map_err(Error::io("read", path))?;
        let mut reader = serde_json::Deserializer::from_slice(&bytes);
        let file: PolicyFile = PolicyFile::deserialize(&mut reader)
            .and_then(|file| reader.end().map(|()| file))
            .map_err(|error| invalid(format!("it is not a signature policy: {error}")))?;
        if file.format != FORMAT {
            return Err(invalid(format!(
                "it has format {}, and this program reads format {FORMAT}",
                file.format
            )));
        }
        let policy = Self::new(file.signers);
        let Some(root) = file.trusted_root else {
            return Ok(policy);
        };
        let root = path.parent().unwrap_or(Path::new("")).join(root);
        let json = fs::read_to_string(&root).map_err(Error::io("read", &root))?;
        policy.with_trusted_root(json)
    }

    /// The accepted signers.
    pub fn signers(&self) -> &[AllowedSigner] {
        &self.0.signers
    }

    /// Why a signer's signature does not count for a repository; none where it does.
    pub(super) fn objection(
        &self,
        signer: &Signer,
        repository: Option<&RepositoryId>,
    ) -> Option<String> {
        let mut known = self.0.signers.iter().filter(|allowed| allowed.is(signer));
        match known.next() {
            None => Some(format!(
                "it was made by {signer}, whose signatures are not accepted"
            )),
            Some(first) if first.signs_for(repository) => None,
            Some(_) if known.any(|allowed| allowed.signs_for(repository)) => None,
            Some(_) => Some(format!(
                "it was made by {signer}, whose signatures are not accepted for kernels of `{}`",
                repository.map_or("", RepositoryId::owner)
            )),
        }
    }

    /// The verifier, set up when a signature is first looked at.
    pub(super) fn verifier(&self) -> std::result::Result<&Verifier, &str> {
        let set_up = || {
            let json = self.0.root.as_deref();
            let root = TrustedRoot::from_json(json.unwrap_or(SIGSTORE_PRODUCTION_TRUSTED_ROOT));
            root.map_err(|error| format!("the trusted root cannot be read: {error}"))
                .and_then(|root| {
                    Verifier::new(&root)
                        .map_err(|error| format!("the trusted root cannot be used: {error}"))
                })
        };
        let verifier = self.0.verifier.get_or_init(set_up);
        verifier.as_ref().map_err(String::as_str)
    }
}
