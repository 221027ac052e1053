//! Certificates of the test network: a good one and three that must not be trusted.

use std::sync::{Arc, OnceLock};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose, date_time_ymd};
use tokio_rustls::rustls::{
    ServerConfig, crypto,
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer},
};

use super::script::Fault;

/// The authority that clients of the network trust, and what it signed.
pub(crate) struct Pki {
    authority: CertificateDer<'static>,
    good: Arc<ServerConfig>,
    unknown: Arc<ServerConfig>,
    expired: Arc<ServerConfig>,
    wrong_host: Arc<ServerConfig>,
}

impl Pki {
    /// Made once for all tests.
    pub(crate) fn get() -> &'static Self {
        static PKI: OnceLock<Pki> = OnceLock::new();
        PKI.get_or_init(Self::make)
    }

    fn make() -> Self {
        let (authority, issuer) = authority("abide tests");
        let (_, stranger) = authority_without_trust();
        let here = || CertificateParams::new(vec!["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
        let mut old = here();
        old.not_before = date_time_ymd(2019, 1, 1);
        old.not_after = date_time_ymd(2020, 1, 1);
        let elsewhere = CertificateParams::new(vec!["elsewhere.test".to_owned()]).unwrap();
        Self {
            authority,
            good: config(&here(), &issuer),
            unknown: config(&here(), &stranger),
            expired: config(&old, &issuer),
            wrong_host: config(&elsewhere, &issuer),
        }
    }

    /// What clients trust.
    pub(crate) fn authority(&self) -> reqwest::Certificate {
        reqwest::Certificate::from_der(&self.authority).unwrap()
    }

    /// The configuration that shows `fault`; the good one without.
    pub(crate) fn config(&self, fault: Option<Fault>) -> Arc<ServerConfig> {
        let config = match fault {
            Some(Fault::TlsUnknownCa) => &self.unknown,
            Some(Fault::TlsExpiredCert) => &self.expired,
            Some(Fault::TlsWrongHost) => &self.wrong_host,
            _ => &self.good,
        };
        Arc::clone(config)
    }
}

/// A certificate of this machine that nobody trusts, and its key, as PEM.
pub(crate) fn self_signed() -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let here = CertificateParams::new(vec!["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
    (here.self_signed(&key).unwrap().pem(), key.serialize_pem())
}

fn authority_without_trust() -> (CertificateDer<'static>, Issuer<'static, KeyPair>) {
    authority("somebody else")
}

fn authority(name: &str) -> (CertificateDer<'static>, Issuer<'static, KeyPair>) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let key = KeyPair::generate().unwrap();
    let certificate = params.self_signed(&key).unwrap();
    (certificate.der().clone(), Issuer::new(params, key))
}

fn config(params: &CertificateParams, issuer: &Issuer<'static, KeyPair>) -> Arc<ServerConfig> {
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, issuer).unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let provider = Arc::new(crypto::aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    Arc::new(config.with_no_client_auth().with_single_cert(vec![certificate.der().clone()], key).unwrap())
}
