//! SCRAM-SHA-256 (RFC 5802 and 7677), the server's side: what it keeps of a password, and the
//! messages with which a client proves that it knows it.

use std::num::NonZeroU32;

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use ring::{
    digest, hmac, pbkdf2,
    rand::{SecureRandom, SystemRandom},
};
use subtle::ConstantTimeEq;

use crate::error::{Result, SqlError, code};

/// The name of the mechanism.
pub(crate) const MECHANISM: &str = "SCRAM-SHA-256";

/// The rounds of the hash, as PostgreSQL has them.
const ITERATIONS: u32 = 4096;

/// The most rounds of a verifier that a client gives.
const MOST_ITERATIONS: u32 = 10_000_000;

type Key = [u8; 32];

/// The part of a password that a server keeps.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Verifier {
    iterations: u32,
    salt: Vec<u8>,
    stored_key: Key,
    server_key: Key,
}

fn keyed(key: &[u8], message: &[u8]) -> Key {
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), message);
    tag.as_ref().try_into().unwrap_or_default()
}

fn hashed(bytes: &[u8]) -> Key {
    digest::digest(&digest::SHA256, bytes).as_ref().try_into().unwrap_or_default()
}

/// Returns bytes that others cannot guess.
pub(crate) fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    let filled = SystemRandom::new().fill(&mut bytes);
    filled.map_err(|_| SqlError::new(code::SYSTEM_ERROR, "the system gives no random numbers"))?;
    Ok(bytes)
}

impl Verifier {
    /// Returns what to keep of a password.
    pub(crate) fn of(password: &str) -> Result<Self> {
        Ok(Self::with_salt(password, random::<16>()?.to_vec()))
    }

    fn with_salt(password: &str, salt: Vec<u8>) -> Self {
        let prepared = stringprep::saslprep(password);
        let prepared = prepared.as_deref().unwrap_or(password);
        let mut salted = [0; 32];
        let rounds = NonZeroU32::new(ITERATIONS).unwrap_or(NonZeroU32::MIN);
        pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA256, rounds, &salt, prepared.as_bytes(), &mut salted);
        Self {
            iterations: ITERATIONS,
            salt,
            stored_key: hashed(&keyed(&salted, b"Client Key")),
            server_key: keyed(&salted, b"Server Key"),
        }
    }

    /// Returns a verifier that no password has, the same one each time for a name: so a client does
    /// not learn whether the role exists.
    pub(crate) fn of_none(secret: &[u8; 32], name: &str) -> Self {
        let salt = keyed(secret, name.as_bytes())[..16].to_vec();
        Self { iterations: ITERATIONS, salt, stored_key: [0; 32], server_key: [0; 32] }
    }

    /// Reads the form that PostgreSQL has, which clients may give in place of a password.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let rest = text.strip_prefix("SCRAM-SHA-256$")?;
        let (head, keys) = rest.split_once('$')?;
        let (iterations, salt) = head.split_once(':')?;
        let (stored, server) = keys.split_once(':')?;
        let key = |text: &str| BASE64.decode(text).ok().and_then(|bytes| Key::try_from(bytes).ok());
        Some(Self {
            iterations: iterations.parse().ok().filter(|rounds| (1..=MOST_ITERATIONS).contains(rounds))?,
            salt: BASE64.decode(salt).ok()?,
            stored_key: key(stored)?,
            server_key: key(server)?,
        })
    }

    /// Returns the form that [`Self::parse`] reads.
    pub(crate) fn text(&self) -> String {
        let [salt, stored, server] =
            [&self.salt[..], &self.stored_key, &self.server_key].map(|bytes| BASE64.encode(bytes));
        format!("SCRAM-SHA-256${}:{salt}${stored}:{server}", self.iterations)
    }
}

fn malformed() -> SqlError {
    SqlError::new(code::PROTOCOL_VIOLATION, "malformed SCRAM message")
}

/// The exchange after the client's first message.
pub(crate) struct Exchange {
    verifier: Verifier,
    /// The flags of the client about the channel, which it repeats.
    header: String,
    client_first: String,
    server_first: String,
    nonce: String,
}

impl Exchange {
    /// Begins with the client's first message. The answer is [`Self::first`].
    pub(crate) fn begin(verifier: Verifier, message: &[u8]) -> Result<Self> {
        let text = std::str::from_utf8(message).map_err(|_| malformed())?;
        let mut parts = text.splitn(3, ',');
        let mut part = || parts.next().ok_or_else(malformed);
        let (binding, name, bare) = (part()?, part()?, part()?);
        if !matches!(binding, "n" | "y") || !name.is_empty() {
            // The mechanism with channel binding was not offered.
            return Err(malformed());
        }
        let nonce = bare.split(',').find_map(|part| part.strip_prefix("r="));
        let nonce = nonce.filter(|nonce| !nonce.is_empty()).ok_or_else(malformed)?;
        let nonce = format!("{nonce}{}", BASE64.encode(random::<18>()?));
        let server_first = format!("r={nonce},s={},i={}", BASE64.encode(&verifier.salt), verifier.iterations);
        let header = format!("{binding},{name},");
        Ok(Self { verifier, header, client_first: bare.to_owned(), server_first, nonce })
    }

    /// Returns the answer to the client's first message.
    pub(crate) fn first(&self) -> &str {
        &self.server_first
    }

    /// Returns the answer to the client's last message; `None` if it does not know the password.
    pub(crate) fn end(&self, message: &[u8]) -> Result<Option<String>> {
        let text = std::str::from_utf8(message).map_err(|_| malformed())?;
        let (bare, proof) = text.rsplit_once(",p=").ok_or_else(malformed)?;
        let expected = format!("c={},r={}", BASE64.encode(&self.header), self.nonce);
        let proof = BASE64.decode(proof).ok().and_then(|bytes| Key::try_from(bytes).ok());
        let proof = proof.filter(|_| bare == expected).ok_or_else(malformed)?;
        let exchange = format!("{},{},{bare}", self.client_first, self.server_first);
        let mut client_key = keyed(&self.verifier.stored_key, exchange.as_bytes());
        client_key.iter_mut().zip(proof).for_each(|(byte, other)| *byte ^= other);
        let is_right = bool::from(hashed(&client_key).ct_eq(&self.verifier.stored_key));
        let signature = keyed(&self.verifier.server_key, exchange.as_bytes());
        Ok(is_right.then(|| format!("v={}", BASE64.encode(signature))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The exchange of RFC 7677, section 3.
    fn example() -> Exchange {
        let salt = BASE64.decode("W22ZaJ0SNY7soEsUEjb6gQ==").unwrap();
        let nonce = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0";
        Exchange {
            verifier: Verifier::with_salt("pencil", salt),
            header: "n,,".into(),
            client_first: "n=user,r=rOprNGfwEbeRWgbNEkqO".into(),
            server_first: format!("r={nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"),
            nonce: nonce.into(),
        }
    }

    const LAST: &str = "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,\
                        p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=";

    #[test]
    fn the_example_of_the_rfc_is_accepted_and_a_changed_one_is_not() {
        let end = example().end(LAST.as_bytes()).unwrap().unwrap();
        assert_eq!(end, "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=");
        let wrong = LAST.replace("dHzb", "dHzc");
        assert_eq!(example().end(wrong.as_bytes()).unwrap(), None);
        assert!(example().end(LAST.replace("biws", "eSws").as_bytes()).is_err());
        let other = Exchange { verifier: Verifier::of_none(&[7; 32], "user"), ..example() };
        assert_eq!(other.end(LAST.as_bytes()).unwrap(), None);
    }

    #[test]
    fn a_verifier_has_the_form_of_postgresql_and_malformed_ones_are_refused() {
        let verifier = Verifier::of("secret").unwrap();
        assert!(Verifier::parse(&verifier.text()) == Some(verifier.clone()));
        for wrong in ["", "secret", "SCRAM-SHA-256$0:AAAA$AAAA:AAAA", "md5aaaa"] {
            assert!(Verifier::parse(wrong).is_none(), "{wrong}");
        }
        assert!(verifier.text().starts_with("SCRAM-SHA-256$4096:"));
    }
}
