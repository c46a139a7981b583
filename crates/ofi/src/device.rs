//! The objects that a rail opens in libfabric: a fabric, a domain, a completion queue, an address
//! vector, two endpoints, and memory regions. They are closed in an order that leaves nothing
//! behind.
//!
//! Every rail has a domain of its own. Guarantees: no two threads use it at once, so the provider
//! need not lock (`FI_THREAD_DOMAIN`); a fault of another rail does not reach it; and closing it
//! revokes every key that was given to the peer. The price is that windows are registered once for
//! each peer and worker.
//!
//! This module does not know what is sent.
#![allow(unsafe_code, reason = "calls a C library through its tables")]

use std::{
    ffi::{CStr, CString, c_int, c_void},
    mem::MaybeUninit,
    net::IpAddr,
    os::fd::RawFd,
    ptr::{self, NonNull},
};

use crate::{OfiError, library::Library, sys};

/// The longest endpoint address that is accepted from a provider.
pub(crate) const MAX_ADDRESS: usize = 256;

/// The providers whose endpoints are named by an IP address of the host.
const WITH_IP: [&str; 5] = ["tcp", "verbs", "net", "sockets", "udp"];

/// The modes of registration that this rail supports.
const MR_MODES: c_int = sys::FI_MR_LOCAL
    | sys::FI_MR_VIRT_ADDR
    | sys::FI_MR_ALLOCATED
    | sys::FI_MR_PROV_KEY
    | sys::FI_MR_ENDPOINT;

/// An object of libfabric, closed when it is dropped. Every such structure begins with a
/// [`sys::Fid`].
pub(crate) struct Object<T> {
    place: NonNull<T>,
    open: bool,
}

impl<T> Object<T> {
    /// Calls `open` for an object.
    fn open(what: &'static str, open: impl FnOnce(*mut *mut T) -> c_int) -> Result<Self, OfiError> {
        let mut place = ptr::null_mut();
        check(what, open(&raw mut place))?;
        match NonNull::new(place) {
            Some(place) => Ok(Self { place, open: true }),
            None => Err(OfiError::Call { what, why: "it returned nothing".into() }),
        }
    }

    pub(crate) fn as_ptr(&self) -> *mut T {
        self.place.as_ptr()
    }

    fn fid(&self) -> *mut sys::Fid {
        self.place.as_ptr().cast()
    }

    fn ops(&self) -> &sys::FidOps {
        // SAFETY: an open object begins with its fid, whose table is as old as the library.
        unsafe { &*(*self.fid()).ops }
    }

    fn bind(&self, what: &'static str, to: *mut sys::Fid, flags: u64) -> Result<(), OfiError> {
        // SAFETY: both are open objects.
        check(what, unsafe { (self.ops().bind)(self.fid(), to, flags) })
    }

    fn enable(&self, what: &'static str) -> Result<(), OfiError> {
        // SAFETY: an open object; this command takes no argument.
        check(what, unsafe { (self.ops().control)(self.fid(), sys::FI_ENABLE, ptr::null_mut()) })
    }

    /// Closes it now; returns true if the provider did.
    pub(crate) fn close(&mut self) -> bool {
        if self.open {
            // SAFETY: an open object, which is not used afterwards.
            self.open = unsafe { (self.ops().close)(self.fid()) } != 0;
        }
        !self.open
    }
}

impl<T> Drop for Object<T> {
    fn drop(&mut self) {
        self.close();
    }
}

fn check(what: &'static str, code: c_int) -> Result<(), OfiError> {
    if code == 0 {
        return Ok(());
    }
    let why = Library::load().map_or_else(|_| format!("error {code}"), |library| library.explain(code));
    Err(OfiError::Call { what, why })
}

/// Memory that is registered with the provider.
pub(crate) struct Region(Object<sys::Mr>);

impl Region {
    /// The descriptor that goes with every use of the memory in a call.
    pub(crate) fn descriptor(&self) -> *mut c_void {
        // SAFETY: open.
        unsafe { (*self.0.as_ptr()).mem_desc }
    }

    /// The key with which a peer writes there.
    pub(crate) fn key(&self) -> u64 {
        // SAFETY: open.
        unsafe { (*self.0.as_ptr()).key }
    }

    /// Takes the memory from the provider; returns true if that released it.
    pub(crate) fn close(&mut self) -> bool {
        self.0.close()
    }
}

/// The properties of the provider.
#[derive(Clone, Debug)]
pub(crate) struct ProviderProperties {
    /// Its full name, `tcp;ofi_rxm`.
    pub(crate) provider: String,
    /// The format of its addresses.
    pub(crate) address_format: u32,
    /// The longest message that is sent from memory which is free when the call returns.
    pub(crate) inject_len: usize,
    /// The longest message or write.
    pub(crate) max_len: usize,
    /// True if a message that is sent after a write is received after it.
    pub(crate) orders_sends_after_writes: bool,
    mr_mode: c_int,
    key_bytes: usize,
}

impl ProviderProperties {
    fn wants(&self, mode: c_int) -> bool {
        self.mr_mode & mode != 0
    }

    /// Returns true if a peer addresses a window by its address in this process.
    pub(crate) fn virtual_addresses(&self) -> bool {
        self.wants(sys::FI_MR_VIRT_ADDR)
    }
}

/// The objects of one rail. Fields are closed from the top.
pub(crate) struct Device {
    pub(crate) facts: ProviderProperties,
    /// A descriptor that is readable when completions may have come, if the provider has one.
    pub(crate) fd: Option<RawFd>,
    av: Object<sys::Av>,
    cq: Object<sys::Cq>,
    domain: Object<sys::Domain>,
    fabric: Object<sys::Fabric>,
    info: Description,
    library: &'static Library,
}

/// A list of `fi_info` that the library owns.
struct Description {
    first: NonNull<sys::Info>,
    library: &'static Library,
}

impl Drop for Description {
    fn drop(&mut self) {
        // SAFETY: came from the library and is not used afterwards.
        unsafe { (self.library.freeinfo)(self.first.as_ptr()) }
    }
}

impl Description {
    /// The first description that `provider` gives of an endpoint that a rail can use.
    fn find(library: &'static Library, provider: &str, address: Option<IpAddr>) -> Result<Self, OfiError> {
        // Most providers promise that order if it is requested; the others get a weaker request.
        let orders = [sys::FI_ORDER_SAS | sys::FI_ORDER_SAW, sys::FI_ORDER_SAS];
        let mut code = 0;
        for order in orders {
            match Self::ask(library, provider, address, order)? {
                Ok(found) => return Ok(found),
                Err(error) => code = error,
            }
        }
        Err(OfiError::Provider { wanted: provider.into(), why: library.explain(code) })
    }

    fn ask(
        library: &'static Library,
        provider: &str,
        address: Option<IpAddr>,
        order: u64,
    ) -> Result<Result<Self, c_int>, OfiError> {
        let text = |text: String| {
            CString::new(text).map_err(|_| OfiError::Provider {
                wanted: provider.into(),
                why: "the name is not valid".into(),
            })
        };
        let name = text(provider.to_owned())?;
        let address = address.filter(|_| WITH_IP.contains(&provider));
        let node = address.map(|address| text(address.to_string())).transpose()?;
        // SAFETY: without an argument it makes a new description, with all its parts and zeros in
        // them.
        let hints = NonNull::new(unsafe { (library.dupinfo)(ptr::null()) })
            .ok_or(OfiError::Call { what: "describe an endpoint", why: "no memory".into() })?;
        let hints = Self { first: hints, library };
        // SAFETY: fresh and ours alone; the parts are allocated with it. `name` outlives the call
        // below, and is taken out again before the library frees the hints.
        let (code, found) = unsafe {
            let info = hints.first.as_ptr();
            (*info).caps = sys::FI_MSG | sys::FI_RMA;
            (*info).mode = sys::FI_CONTEXT | sys::FI_CONTEXT2;
            (*(*info).ep_attr).r#type = sys::FI_EP_RDM;
            (*(*info).tx_attr).msg_order = order;
            (*(*info).rx_attr).msg_order = order;
            (*(*info).domain_attr).threading = sys::FI_THREAD_DOMAIN;
            (*(*info).domain_attr).resource_mgmt = sys::FI_RM_ENABLED;
            (*(*info).domain_attr).mr_mode = MR_MODES;
            (*(*info).fabric_attr).prov_name = name.as_ptr().cast_mut();
            let flags = if node.is_some() { sys::FI_SOURCE | sys::FI_NUMERICHOST } else { 0 };
            let node = node.as_ref().map_or(ptr::null(), |node| node.as_ptr());
            let mut found = ptr::null_mut();
            let code = (library.getinfo)(sys::API, node, ptr::null(), flags, info, &raw mut found);
            (*(*info).fabric_attr).prov_name = ptr::null_mut();
            (code, found)
        };
        Ok(NonNull::new(found).filter(|_| code == 0).map(|first| Self { first, library }).ok_or(code))
    }

    fn facts(&self) -> ProviderProperties {
        // SAFETY: a description from the library has all parts.
        unsafe {
            let info = &*self.first.as_ptr();
            let (tx, rx) = (&*info.tx_attr, &*info.rx_attr);
            let (domain, fabric) = (&*info.domain_attr, &*info.fabric_attr);
            ProviderProperties {
                provider: CStr::from_ptr(fabric.prov_name).to_string_lossy().into_owned(),
                address_format: info.addr_format,
                inject_len: tx.inject_size,
                max_len: (*info.ep_attr).max_msg_size,
                orders_sends_after_writes: tx.msg_order & rx.msg_order & sys::FI_ORDER_SAW != 0,
                mr_mode: domain.mr_mode,
                key_bytes: domain.mr_key_size,
            }
        }
    }
}

impl Device {
    /// Opens everything but the endpoints, with a queue for `completions` of them.
    pub(crate) fn open(
        provider: &str,
        address: Option<IpAddr>,
        completions: usize,
    ) -> Result<Self, OfiError> {
        let library = Library::load()?;
        let info = Description::find(library, provider, address)?;
        let facts = info.facts();
        let raw = info.first.as_ptr();
        // SAFETY: the calls get what their headers ask for: the description and objects that are
        // open, attributes that live through the call, and a place for the result.
        unsafe {
            let fabric: Object<sys::Fabric> = Object::open("open a fabric", |place| {
                (library.fabric)((*raw).fabric_attr, place, ptr::null_mut())
            })?;
            let domain = Object::open("open a domain", |place| {
                ((*(*fabric.as_ptr()).ops).domain)(fabric.as_ptr(), raw, place, ptr::null_mut())
            })?;
            let cq = |wait_obj| {
                let mut attributes = sys::CqAttr {
                    size: completions,
                    flags: 0,
                    format: sys::FI_CQ_FORMAT_MSG,
                    wait_obj,
                    signaling_vector: 0,
                    wait_cond: 0,
                    wait_set: ptr::null_mut(),
                };
                Object::<sys::Cq>::open("open a completion queue", |place| {
                    let domain = domain.as_ptr();
                    ((*(*domain).ops).cq_open)(domain, &raw mut attributes, place, ptr::null_mut())
                })
            };
            let (cq, fd) = match cq(sys::FI_WAIT_FD) {
                Ok(cq) => {
                    let mut fd: c_int = -1;
                    let code = (cq.ops().control)(cq.fid(), sys::FI_GETWAIT, (&raw mut fd).cast());
                    check("ask for the descriptor of a completion queue", code)?;
                    (cq, Some(fd))
                }
                Err(_) => (cq(sys::FI_WAIT_NONE)?, None),
            };
            let mut attributes = sys::AvAttr {
                r#type: 0,
                rx_ctx_bits: 0,
                count: 2,
                ep_per_node: 0,
                name: ptr::null(),
                map_addr: ptr::null_mut(),
                flags: 0,
            };
            let av = Object::open("open an address vector", |place| {
                let domain = domain.as_ptr();
                ((*(*domain).ops).av_open)(domain, &raw mut attributes, place, ptr::null_mut())
            })?;
            Ok(Self { facts, fd, av, cq, domain, fabric, info, library })
        }
    }

    /// Opens an endpoint, ready to receive.
    pub(crate) fn endpoint(&self) -> Result<Object<sys::Ep>, OfiError> {
        let domain = self.domain.as_ptr();
        let info = self.info.first.as_ptr();
        // SAFETY: as above.
        let endpoint: Object<sys::Ep> = Object::open("open an endpoint", |place| unsafe {
            ((*(*domain).ops).endpoint)(domain, info, place, ptr::null_mut())
        })?;
        endpoint.bind("give an endpoint its queue", self.cq.fid(), sys::FI_TRANSMIT | sys::FI_RECV)?;
        endpoint.bind("give an endpoint its addresses", self.av.fid(), 0)?;
        endpoint.enable("enable an endpoint")?;
        Ok(endpoint)
    }

    /// The address at which peers find `endpoint`.
    pub(crate) fn name(&self, endpoint: &Object<sys::Ep>) -> Result<Vec<u8>, OfiError> {
        let mut name = vec![0; MAX_ADDRESS];
        let mut len = name.len();
        // SAFETY: an enabled endpoint; the place is as long as `len` says.
        let code = unsafe {
            ((*(*endpoint.as_ptr()).cm).getname)(endpoint.fid(), name.as_mut_ptr().cast(), &raw mut len)
        };
        check("ask for the address of an endpoint", code)?;
        name.truncate(len);
        Ok(name)
    }

    /// Adds the peer's endpoint at `name`; returns its entry in the address vector.
    pub(crate) fn insert(&self, name: &[u8]) -> Result<u64, OfiError> {
        let mut address = sys::FI_ADDR_UNSPEC;
        let mut padded = [0u8; MAX_ADDRESS];
        padded[..name.len()].copy_from_slice(name);
        // SAFETY: the address stands in memory that is longer than any format, and ends with zeros
        // for those that are text.
        let inserted = unsafe {
            let av = self.av.as_ptr();
            let (name, address) = (padded.as_ptr().cast(), &raw mut address);
            ((*(*av).ops).insert)(av, name, 1, address, 0, ptr::null_mut())
        };
        if inserted == 1 {
            return Ok(address);
        }
        let why = if inserted < 0 { self.library.explain(inserted) } else { "it was not accepted".into() };
        Err(OfiError::Call { what: "insert the address of the peer", why })
    }

    /// Registers memory for `endpoint`, with `key` if the provider does not choose one itself.
    ///
    /// # Safety
    /// The memory stays mapped until the region is closed, or `endpoint` where that fails.
    pub(crate) unsafe fn register(
        &self,
        endpoint: &Object<sys::Ep>,
        start: NonNull<u8>,
        len: usize,
        access: u64,
        key: u64,
    ) -> Result<Region, OfiError> {
        let key = match (self.facts.wants(sys::FI_MR_PROV_KEY), self.facts.key_bytes) {
            (true, _) => 0,
            (false, bytes @ 1..8) => key & ((1 << (bytes * 8)) - 1),
            (false, _) => key,
        };
        let domain = self.domain.as_ptr();
        // SAFETY: an open domain; the caller vouches for the memory.
        let region = Object::open("register memory", |place| unsafe {
            let start = start.as_ptr().cast_const().cast();
            let none = ptr::null_mut();
            ((*(*domain).mr).reg)(domain.cast(), start, len, access, 0, key, 0, place, none)
        })?;
        if self.facts.wants(sys::FI_MR_ENDPOINT) {
            region.bind("give memory its endpoint", endpoint.fid(), 0)?;
            region.enable("enable memory")?;
        }
        Ok(Region(region))
    }

    /// Registers memory that only this side uses, if the provider requires that.
    ///
    /// # Safety
    /// As [`Device::register`].
    pub(crate) unsafe fn register_local(
        &self,
        endpoint: &Object<sys::Ep>,
        start: NonNull<u8>,
        len: usize,
        key: u64,
    ) -> Result<Option<Region>, OfiError> {
        if !self.facts.wants(sys::FI_MR_LOCAL) {
            return Ok(None);
        }
        let access = sys::FI_SEND | sys::FI_RECV | sys::FI_WRITE;
        // SAFETY: as the caller's.
        unsafe { self.register(endpoint, start, len, access, key) }.map(Some)
    }

    /// Reads completions into `entries`; returns their number, or libfabric's error, positive.
    #[inline]
    pub(crate) fn read(&self, entries: &mut [MaybeUninit<sys::CqMsgEntry>]) -> Result<usize, c_int> {
        let cq = self.cq.as_ptr();
        // SAFETY: an open queue of this format; the place holds so many.
        let read = unsafe { ((*(*cq).ops).read)(cq, entries.as_mut_ptr().cast(), entries.len()) };
        usize::try_from(read).map_err(|_| -read as c_int)
    }

    /// The failed completion, if there is one: its context and its error.
    pub(crate) fn read_error(&self) -> Option<(*mut c_void, c_int)> {
        /// An entry with room for later versions, whose entries are longer. Versions that ask for
        /// its length get the short one.
        #[repr(C)]
        struct Roomy {
            entry: sys::CqErrEntry,
            _room: [u64; 8],
        }
        let mut place = MaybeUninit::<Roomy>::zeroed();
        let cq = self.cq.as_ptr();
        // SAFETY: an open queue; all zeros is an entry that offers no room for the provider's own
        // data.
        unsafe {
            let entry = place.as_mut_ptr().cast::<sys::CqErrEntry>();
            let read = ((*(*cq).ops).readerr)(cq, entry, 0);
            (read == 1).then(|| ((*entry).op_context, (*entry).err))
        }
    }

    /// Returns true if the descriptor announces everything that comes from now on.
    pub(crate) fn may_sleep(&self) -> bool {
        let mut fid = self.cq.fid();
        let fabric = self.fabric.as_ptr();
        // SAFETY: open objects of one fabric.
        unsafe { ((*(*fabric).ops).trywait)(fabric, &raw mut fid, 1) == 0 }
    }

    pub(crate) fn explain(&self, code: c_int) -> String {
        self.library.explain(code)
    }
}
