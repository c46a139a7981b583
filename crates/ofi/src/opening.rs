//! The beginning of a rail: an open end that receives and does not know its peer yet.

use std::{
    net::IpAddr,
    sync::{Arc, atomic::AtomicBool},
};

use plexus_fabric::{LANES, Lane, Windows};

use crate::{
    OfiError, OfiRail,
    device::Device,
    endpoint::{Endpoint, SLOTS},
    offer::{MAX_WINDOWS, Offer},
    operations::OPERATIONS,
    parts::Parts,
    twins,
    wire::MAX_MESSAGE,
};

/// One end of a future rail: everything is open and receives, and the peer is not known yet.
pub struct OfiEndpoint {
    parts: Parts,
    offer: Offer,
}

impl OfiEndpoint {
    /// Opens an end over `provider` (`tcp`, `verbs`, `efa`, `shm`), at `address` of this host if
    /// the provider uses one, and registers `windows` for the peer to write into.
    ///
    /// # Errors
    /// See [`OfiError`]: libfabric, the provider or memory that it could pin is missing.
    pub fn open(provider: &str, address: Option<IpAddr>, windows: Arc<Windows>) -> Result<Self, OfiError> {
        let device = Device::open(provider, address, LANES * (SLOTS + OPERATIONS + 1))?;
        let facts = &device.facts;
        let unfit = |why: &str| OfiError::Provider { wanted: provider.into(), why: why.into() };
        if facts.max_len < MAX_MESSAGE {
            return Err(unfit("its longest message is shorter than a frame"));
        }
        if !Offer::names(&facts.provider) {
            return Err(unfit("its name is too long"));
        }
        let count = windows.spans().count();
        if count > MAX_WINDOWS {
            return Err(OfiError::Windows { windows: count });
        }
        let session = random()?;
        // Keys must be unpredictable, and different.
        let (first_key, mut keys) = (random()?, 0u64);
        let mut key = || {
            keys += 1;
            first_key.wrapping_add(keys)
        };
        let [prompt, bulk] = Lane::ALL.map(|lane| Endpoint::open(&device, lane, session, &mut key));
        let endpoints = [prompt?, bulk?];
        let mut parts = Parts { window_regions: Vec::new(), endpoints, device, windows };
        let remote = parts.register(&mut key)?;
        let [prompt, bulk] = parts.endpoints.each_ref().map(|end| parts.device.name(end.object()));
        let offer = Offer {
            session,
            provider: parts.device.facts.provider.clone(),
            address_format: parts.device.facts.address_format,
            addresses: [prompt?, bulk?],
            windows: remote,
        };
        Ok(Self { parts, offer })
    }

    /// The offer to send to the peer.
    #[must_use]
    pub fn offer(&self) -> &Offer {
        &self.offer
    }

    /// Builds the rail to the peer that sent `offer`. The caller sets `gone` when it learns that
    /// the peer is gone, and rings the worker's bell.
    ///
    /// # Errors
    /// The peer uses another provider, or its addresses are refused.
    pub fn connect(self, offer: Offer, gone: Arc<AtomicBool>) -> Result<OfiRail, OfiError> {
        let Self { mut parts, offer: ours } = self;
        if (&offer.provider, offer.address_format) != (&ours.provider, ours.address_format) {
            return Err(OfiError::Differs { ours: ours.provider, theirs: offer.provider });
        }
        for (endpoint, address) in parts.endpoints.iter_mut().zip(&offer.addresses) {
            endpoint.connect(parts.device.insert(address)?, offer.session);
        }
        twins::begin(&ours.provider, ours.session);
        Ok(OfiRail::new(parts, (ours.session, offer.session), offer.windows, gone))
    }
}

fn random() -> Result<u64, OfiError> {
    getrandom::u64().map_err(|error| OfiError::Call { what: "get random numbers", why: error.to_string() })
}
