//! A Sigstore instance for tests: a certificate authority, a certificate log and a signature log.
//!
//! Genuine bundles of kernels can only be made by the workflow that publishes them. This instance
//! makes bundles of the same form, certificate with Fulcio's extensions, embedded timestamp of the
//! certificate log, and entry in the signature log with promise, proof and checkpoint, under a root of
//! its own. A client that is given that root has to go through every check that it makes of a genuine
//! bundle.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, CustomExtension, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose, PublicKeyData as _, SanType,
    SerialNumber, SigningKey as _, date_time_ymd,
};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::error::{Error, Result};

/// Extensions of Fulcio certificates, below this arc.
const FULCIO: [u64; 8] = [1, 3, 6, 1, 4, 1, 57264, 1];
const ISSUER: u64 = 8;
const BUILD_SIGNER_URI: u64 = 9;
const SOURCE_REPOSITORY_URI: u64 = 12;
const SOURCE_REPOSITORY_DIGEST: u64 = 13;
/// The list of signed certificate timestamps in a certificate.
const TIMESTAMPS: [u64; 10] = [1, 3, 6, 1, 4, 1, 11129, 2, 4, 2];
/// When everything was signed: noon of 2 January 2024. Certificates are valid on that day and the next.
const SIGNED_AT: u64 = 1_704_196_800;

/// The workflow that a certificate is issued to.
#[derive(Debug, Clone)]
pub struct Workflow {
    /// Who vouches for it.
    pub issuer: String,
    /// The repository that it builds, `https://github.com/<owner>/<name>`.
    pub source_repository: String,
    /// The workflow with its ref, `<repository>/.github/workflows/<file>@refs/heads/<branch>`.
    pub signer: String,
    /// The commit that it builds.
    pub source_commit: String,
}

impl Workflow {
    /// `build.yaml` on the main branch of a repository of GitHub.
    pub fn github(source_repository: &str) -> Self {
        Self {
            issuer: "https://token.actions.githubusercontent.com".to_owned(),
            source_repository: source_repository.to_owned(),
            signer: format!("{source_repository}/.github/workflows/build.yaml@refs/heads/main"),
            source_commit: "5".repeat(40),
        }
    }
}

/// A Sigstore instance with keys of its own.
#[derive(Debug)]
pub struct Sigstore {
    authority: CertifiedIssuer<'static, KeyPair>,
    certificate_log: KeyPair,
    signature_log: KeyPair,
}

impl Sigstore {
    /// An instance with fresh keys.
    pub fn new() -> Result<Self> {
        let mut params = CertificateParams::default();
        params
            .distinguished_name
            .push(DnType::CommonName, "test authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::DigitalSignature,
        ];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::CodeSigning];
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2090, 1, 1);
        let key = || KeyPair::generate().map_err(Error::certificate);
        Ok(Self {
            authority: CertifiedIssuer::self_signed(params, key()?).map_err(Error::certificate)?,
            certificate_log: key()?,
            signature_log: key()?,
        })
    }

    /// What a client has to trust: the JSON of a `TrustedRoot`.
    pub fn trusted_root(&self) -> String {
        let valid = json!({"start": "2020-01-01T00:00:00Z"});
        let log = |key: &KeyPair| {
            json!([{
                "baseUrl": "https://log.invalid",
                "hashAlgorithm": "SHA2_256",
                "publicKey": {
                    "rawBytes": STANDARD.encode(key.subject_public_key_info()),
                    "keyDetails": "PKIX_ECDSA_P256_SHA_256",
                    "validFor": valid,
                },
                "logId": {"keyId": STANDARD.encode(log_id(key))},
            }])
        };
        let root = json!({
            "mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1",
            "tlogs": log(&self.signature_log),
            "certificateAuthorities": [{
                "subject": {"organization": "test", "commonName": "test authority"},
                "uri": "https://authority.invalid",
                "certChain": {
                    "certificates": [{"rawBytes": STANDARD.encode(self.authority.der())}],
                },
                "validFor": valid,
            }],
            "ctlogs": log(&self.certificate_log),
            "timestampAuthorities": [],
        });
        root.to_string()
    }

    /// Signs bytes in the name of a workflow: the JSON of a bundle, version 0.3.
    pub fn sign(&self, workflow: &Workflow, artifact: &[u8]) -> Result<String> {
        let key = KeyPair::generate().map_err(Error::certificate)?;
        let certificate = self.certificate(workflow, &key)?;
        let digest = Sha256::digest(artifact);
        let signature = key.sign(artifact).map_err(Error::certificate)?;
        let pem = pem(&certificate);
        let body = json!({
            "apiVersion": "0.0.1",
            "kind": "hashedrekord",
            "spec": {
                "data": {"hash": {"algorithm": "sha256", "value": hex::encode(digest)}},
                "signature": {
                    "content": STANDARD.encode(&signature),
                    "publicKey": {"content": STANDARD.encode(pem)},
                },
            },
        });
        let bundle = json!({
            "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
            "verificationMaterial": {
                "certificate": {"rawBytes": STANDARD.encode(&certificate)},
                "tlogEntries": [self.entry(body.to_string().as_bytes())?],
            },
            "messageSignature": {
                "messageDigest": {"algorithm": "SHA2_256", "digest": STANDARD.encode(digest)},
                "signature": STANDARD.encode(&signature),
            },
        });
        Ok(bundle.to_string())
    }

    /// A certificate for a workflow's key, with the certificate log's timestamp in it.
    fn certificate(&self, workflow: &Workflow, key: &KeyPair) -> Result<Vec<u8>> {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.serial_number = Some(SerialNumber::from_slice(&[1]));
        params.not_before = date_time_ymd(2024, 1, 2);
        params.not_after = date_time_ymd(2024, 1, 4);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::CodeSigning];
        params.use_authority_key_identifier_extension = true;
        let name = workflow
            .signer
            .as_str()
            .try_into()
            .map_err(Error::certificate)?;
        params.subject_alt_names = vec![SanType::URI(name)];
        params.custom_extensions = [
            (ISSUER, &workflow.issuer),
            (BUILD_SIGNER_URI, &workflow.signer),
            (SOURCE_REPOSITORY_URI, &workflow.source_repository),
            (SOURCE_REPOSITORY_DIGEST, &workflow.source_commit),
        ]
        .map(|(number, text)| {
            let oid: Vec<_> = FULCIO.into_iter().chain([number]).collect();
            CustomExtension::from_oid_content(&oid, der(UTF8_STRING, text.as_bytes()))
        })
        .to_vec();
        let sign = |params: &CertificateParams| {
            params
                .signed_by(key, &self.authority)
                .map_err(Error::certificate)
        };
        // The log signs the certificate as it is without the log's own timestamp.
        let before = sign(&params)?;
        let timestamps = self.timestamps(signed_part(before.der()))?;
        let timestamps = der(OCTET_STRING, &timestamps);
        params
            .custom_extensions
            .push(CustomExtension::from_oid_content(&TIMESTAMPS, timestamps));
        Ok(sign(&params)?.der().to_vec())
    }

    /// The list of one signed certificate timestamp (RFC 6962, 3.2 and 3.3).
    fn timestamps(&self, certificate: &[u8]) -> Result<Vec<u8>> {
        let time = (SIGNED_AT * 1000).to_be_bytes();
        let issuer = Sha256::digest(self.authority.key().subject_public_key_info());
        let length = (certificate.len() as u32).to_be_bytes();
        // Version 1, a timestamp of a certificate; then the entry of type "precertificate".
        let signed = [
            &[0, 0][..],
            &time,
            &[0, 1],
            &issuer,
            &length[1..],
            certificate,
            &[0, 0],
        ]
        .concat();
        let signature = self
            .certificate_log
            .sign(&signed)
            .map_err(Error::certificate)?;
        // SHA-256 and ECDSA are 4 and 3.
        let timestamp = [
            &[0][..],
            &log_id(&self.certificate_log),
            &time,
            &[0, 0, 4, 3],
            &with_length(&signature),
        ]
        .concat();
        Ok(with_length(&with_length(&timestamp)))
    }

    /// The only entry of a signature log, with promise, proof and checkpoint.
    fn entry(&self, body: &[u8]) -> Result<Value> {
        let id = log_id(&self.signature_log);
        let body_text = STANDARD.encode(body);
        // The keys in alphabetical order and no blanks: the canonical form that is signed.
        let promised = format!(
            r#"{{"body":"{body_text}","integratedTime":{SIGNED_AT},"logID":"{}","logIndex":0}}"#,
            hex::encode(id)
        );
        let sign = |bytes: &[u8]| self.signature_log.sign(bytes).map_err(Error::certificate);
        let promise = sign(promised.as_bytes())?;
        let root = STANDARD.encode(Sha256::digest([&[0], body].concat()));
        let note = format!("log.invalid - 1\n1\n{root}\n");
        let mut signature = id[..4].to_vec();
        signature.extend(sign(note.as_bytes())?);
        let checkpoint = format!(
            "{note}\n\u{2014} log.invalid {}\n",
            STANDARD.encode(signature)
        );
        Ok(json!({
            "logIndex": "0",
            "logId": {"keyId": STANDARD.encode(id)},
            "kindVersion": {"kind": "hashedrekord", "version": "0.0.1"},
            "integratedTime": SIGNED_AT.to_string(),
            "inclusionPromise": {"signedEntryTimestamp": STANDARD.encode(promise)},
            "inclusionProof": {
                "logIndex": "0",
                "rootHash": root,
                "treeSize": "1",
                "hashes": [],
                "checkpoint": {"envelope": checkpoint},
            },
            "canonicalizedBody": body_text,
        }))
    }
}

const OCTET_STRING: u8 = 0x04;
const UTF8_STRING: u8 = 0x0c;

/// A DER element.
fn der(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len();
    let mut element = match length {
        0..0x80 => vec![tag, length as u8],
        0x80..0x100 => vec![tag, 0x81, length as u8],
        _ => vec![tag, 0x82, (length >> 8) as u8, length as u8],
    };
    element.extend_from_slice(content);
    element
}

/// The first element within a certificate, which is what its signature is over.
fn signed_part(certificate: &[u8]) -> &[u8] {
    let inner = &certificate[header(certificate).0..];
    let (start, length) = header(inner);
    &inner[..start + length]
}

/// Length of a DER element's header, and of its content.
fn header(element: &[u8]) -> (usize, usize) {
    match element[1] {
        short @ 0..0x80 => (2, usize::from(short)),
        long => {
            let count = usize::from(long & 0x7f);
            let digits = &element[2..2 + count];
            let length = digits
                .iter()
                .fold(0, |sum, digit| (sum << 8) | usize::from(*digit));
            (2 + count, length)
        }
    }
}

/// Bytes behind their length in two bytes.
fn with_length(bytes: &[u8]) -> Vec<u8> {
    let mut whole = (bytes.len() as u16).to_be_bytes().to_vec();
    whole.extend_from_slice(bytes);
    whole
}

fn log_id(key: &KeyPair) -> [u8; 32] {
    Sha256::digest(key.subject_public_key_info()).into()
}

fn pem(certificate: &[u8]) -> String {
    let text = STANDARD.encode(certificate);
    let lines: Vec<_> = text
        .as_bytes()
        .chunks(64)
        .map(|line| String::from_utf8_lossy(line).into_owned())
        .collect();
    let lines = lines.join("\n");
    format!("-----BEGIN CERTIFICATE-----\n{lines}\n-----END CERTIFICATE-----\n")
}
