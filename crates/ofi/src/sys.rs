//! The structures and numbers of libfabric's interface that this rail uses, as they lie in memory.
//!
//! Most calls of libfabric are not symbols of the library but slots in tables to which an object
//! points. A slot that is not used here is a plain word. Structures that the library allocates end
//! here with the last field that is used; later versions append fields. The library reads those
//! that are allocated here ([`CqAttr`], [`AvAttr`], [`MsgRma`]) as of the version with which the
//! fabric was opened, [`API`].
//!
//! A test compiles a C program against the headers, if there are any, and compares every offset,
//! and the sizes of complete structures.

use std::ffi::{c_char, c_int, c_void};

/// The requested version of the interface: 1.17.
pub(crate) const API: u32 = (1 << 16) | 17;

/// Defines the numbers, and for the test their names in C.
macro_rules! numbers {
    ($($name:ident: $type:ty = $value:expr;)*) => {
        $(pub(crate) const $name: $type = $value;)*

        #[cfg(test)]
        const NUMBERS: &[(&str, i128)] = &[$((stringify!($name), $name as i128),)*];
    };
}

numbers! {
    FI_MSG: u64 = 1 << 1;
    FI_RMA: u64 = 1 << 2;
    FI_RECV: u64 = 1 << 10;
    FI_TRANSMIT: u64 = 1 << 11;
    FI_REMOTE_WRITE: u64 = 1 << 13;
    FI_SEND: u64 = 1 << 11;
    FI_WRITE: u64 = 1 << 9;
    FI_COMPLETION: u64 = 1 << 24;
    FI_DELIVERY_COMPLETE: u64 = 1 << 28;
    FI_SOURCE: u64 = 1 << 57;
    FI_NUMERICHOST: u64 = 1 << 55;
    FI_CONTEXT: u64 = 1 << 59;
    FI_CONTEXT2: u64 = 1 << 52;
    FI_ORDER_SAW: u64 = 1 << 7;
    FI_ORDER_SAS: u64 = 1 << 8;
    FI_PROV_ATTR_ONLY: u64 = 1 << 54;
    FI_MR_LOCAL: c_int = 1 << 2;
    FI_MR_VIRT_ADDR: c_int = 1 << 4;
    FI_MR_ALLOCATED: c_int = 1 << 5;
    FI_MR_PROV_KEY: c_int = 1 << 6;
    FI_MR_ENDPOINT: c_int = 1 << 9;
    FI_EP_RDM: c_int = 3;
    FI_THREAD_DOMAIN: c_int = 3;
    FI_RM_ENABLED: c_int = 2;
    FI_WAIT_NONE: c_int = 0;
    FI_WAIT_FD: c_int = 3;
    FI_CQ_FORMAT_MSG: c_int = 2;
    FI_GETWAIT: c_int = 5;
    FI_ENABLE: c_int = 6;
    FI_ADDR_UNSPEC: u64 = u64::MAX;
    FI_EAGAIN: c_int = 11;
    FI_ETRUNC: c_int = 265;
    FI_EAVAIL: c_int = 259;
}

/// A slot of a table that is not called from here.
pub(crate) type Unused = *const c_void;

/// Defines the structures, and for the test their names in C with the offsets of their fields. Of a
/// structure with `begin` only the first fields stand here.
macro_rules! structures {
    ($($c:literal $name:ident $(, $begin:ident)? { $($field:ident: $type:ty,)* })*) => {
        $(
            #[doc = concat!("`struct ", $c, "`.")]
            #[repr(C)]
            pub(crate) struct $name {
                $(pub(crate) $field: $type,)*
            }
        )*

        /// The C name, the size if the structure is complete, and every field with its offset.
        #[cfg(test)]
        fn structures() -> Vec<(&'static str, Option<usize>, Vec<(&'static str, usize)>)> {
            vec![$((
                $c,
                ([$(stringify!($begin),)? ""].len() == 1).then_some(size_of::<$name>()),
                vec![$((stringify!($field), std::mem::offset_of!($name, $field)),)*],
            ),)*]
        }
    };
}

structures! {
    "fid" Fid {
        fclass: usize,
        context: *mut c_void,
        ops: *const FidOps,
    }
    "fi_ops" FidOps, begin {
        size: usize,
        close: unsafe extern "C" fn(*mut Fid) -> c_int,
        bind: unsafe extern "C" fn(*mut Fid, *mut Fid, u64) -> c_int,
        control: unsafe extern "C" fn(*mut Fid, c_int, *mut c_void) -> c_int,
    }
    "fid_fabric" Fabric, begin {
        fid: Fid,
        ops: *const FabricOps,
    }
    "fi_ops_fabric" FabricOps, begin {
        size: usize,
        domain: unsafe extern "C" fn(*mut Fabric, *mut Info, *mut *mut Domain, *mut c_void) -> c_int,
        passive_ep: Unused,
        eq_open: Unused,
        wait_open: Unused,
        trywait: unsafe extern "C" fn(*mut Fabric, *mut *mut Fid, c_int) -> c_int,
    }
    "fid_domain" Domain {
        fid: Fid,
        ops: *const DomainOps,
        mr: *const MrOps,
    }
    "fi_ops_domain" DomainOps, begin {
        size: usize,
        av_open: unsafe extern "C" fn(*mut Domain, *mut AvAttr, *mut *mut Av, *mut c_void) -> c_int,
        cq_open: unsafe extern "C" fn(*mut Domain, *mut CqAttr, *mut *mut Cq, *mut c_void) -> c_int,
        endpoint: unsafe extern "C" fn(*mut Domain, *mut Info, *mut *mut Ep, *mut c_void) -> c_int,
    }
    "fid_mr" Mr {
        fid: Fid,
        mem_desc: *mut c_void,
        key: u64,
    }
    "fi_ops_mr" MrOps, begin {
        size: usize,
        reg: unsafe extern "C" fn(
            *mut Fid, *const c_void, usize, u64, u64, u64, u64, *mut *mut Mr, *mut c_void,
        ) -> c_int,
    }
    "fid_av" Av {
        fid: Fid,
        ops: *const AvOps,
    }
    "fi_ops_av" AvOps, begin {
        size: usize,
        insert: unsafe extern "C" fn(*mut Av, *const c_void, usize, *mut u64, u64, *mut c_void) -> c_int,
    }
    "fi_av_attr" AvAttr {
        r#type: c_int,
        rx_ctx_bits: c_int,
        count: usize,
        ep_per_node: usize,
        name: *const c_char,
        map_addr: *mut c_void,
        flags: u64,
    }
    "fid_cq" Cq {
        fid: Fid,
        ops: *const CqOps,
    }
    "fi_ops_cq" CqOps, begin {
        size: usize,
        read: unsafe extern "C" fn(*mut Cq, *mut c_void, usize) -> isize,
        readfrom: Unused,
        readerr: unsafe extern "C" fn(*mut Cq, *mut CqErrEntry, u64) -> isize,
    }
    "fi_cq_attr" CqAttr {
        size: usize,
        flags: u64,
        format: c_int,
        wait_obj: c_int,
        signaling_vector: c_int,
        wait_cond: c_int,
        wait_set: *mut c_void,
    }
    "fi_cq_msg_entry" CqMsgEntry {
        op_context: *mut c_void,
        flags: u64,
        len: usize,
    }
    "fi_cq_err_entry" CqErrEntry {
        op_context: *mut c_void,
        flags: u64,
        len: usize,
        buf: *mut c_void,
        data: u64,
        tag: u64,
        olen: usize,
        err: c_int,
        prov_errno: c_int,
        err_data: *mut c_void,
        err_data_size: usize,
    }
    "fid_ep" Ep, begin {
        fid: Fid,
        ops: Unused,
        cm: *const CmOps,
        msg: *const MsgOps,
        rma: *const RmaOps,
    }
    "fi_ops_cm" CmOps, begin {
        size: usize,
        setname: Unused,
        getname: unsafe extern "C" fn(*mut Fid, *mut c_void, *mut usize) -> c_int,
    }
    "fi_ops_msg" MsgOps, begin {
        size: usize,
        recv: unsafe extern "C" fn(*mut Ep, *mut c_void, usize, *mut c_void, u64, *mut c_void) -> isize,
        recvv: Unused,
        recvmsg: Unused,
        send: unsafe extern "C" fn(*mut Ep, *const c_void, usize, *mut c_void, u64, *mut c_void) -> isize,
        sendv: Unused,
        sendmsg: Unused,
        inject: unsafe extern "C" fn(*mut Ep, *const c_void, usize, u64) -> isize,
    }
    "fi_ops_rma" RmaOps, begin {
        size: usize,
        read: Unused,
        readv: Unused,
        readmsg: Unused,
        write: Unused,
        writev: Unused,
        writemsg: unsafe extern "C" fn(*mut Ep, *const MsgRma, u64) -> isize,
    }
    "iovec" IoVec {
        iov_base: *mut c_void,
        iov_len: usize,
    }
    "fi_rma_iov" RmaIov {
        addr: u64,
        len: usize,
        key: u64,
    }
    "fi_msg_rma" MsgRma {
        msg_iov: *const IoVec,
        desc: *mut *mut c_void,
        iov_count: usize,
        addr: u64,
        rma_iov: *const RmaIov,
        rma_iov_count: usize,
        context: *mut c_void,
        data: u64,
    }
    "fi_context2" Context2 {
        internal: [*mut c_void; 8],
    }
    "fi_info" Info, begin {
        next: *mut Info,
        caps: u64,
        mode: u64,
        addr_format: u32,
        src_addrlen: usize,
        dest_addrlen: usize,
        src_addr: *mut c_void,
        dest_addr: *mut c_void,
        handle: *mut Fid,
        tx_attr: *mut TxAttr,
        rx_attr: *mut RxAttr,
        ep_attr: *mut EpAttr,
        domain_attr: *mut DomainAttr,
        fabric_attr: *mut FabricAttr,
    }
    "fi_tx_attr" TxAttr, begin {
        caps: u64,
        mode: u64,
        op_flags: u64,
        msg_order: u64,
        comp_order: u64,
        inject_size: usize,
    }
    "fi_rx_attr" RxAttr, begin {
        caps: u64,
        mode: u64,
        op_flags: u64,
        msg_order: u64,
    }
    "fi_ep_attr" EpAttr, begin {
        r#type: c_int,
        protocol: u32,
        protocol_version: u32,
        max_msg_size: usize,
    }
    "fi_domain_attr" DomainAttr, begin {
        domain: *mut Domain,
        name: *mut c_char,
        threading: c_int,
        control_progress: c_int,
        data_progress: c_int,
        resource_mgmt: c_int,
        av_type: c_int,
        mr_mode: c_int,
        mr_key_size: usize,
    }
    "fi_fabric_attr" FabricAttr, begin {
        fabric: *mut Fabric,
        name: *mut c_char,
        prov_name: *mut c_char,
    }
}

#[cfg(test)]
mod tests {
    use std::{fmt::Write, process::Command};

    use super::*;

    /// A C program that prints every number, size and offset, one in a line.
    fn program() -> (String, Vec<(String, i128)>) {
        let mut c = String::from("#include <stdio.h>\n#include <stddef.h>\n#include <sys/uio.h>\n");
        for header in ["fabric", "fi_domain", "fi_endpoint", "fi_cm", "fi_rma", "fi_eq", "fi_errno"] {
            writeln!(c, "#include <rdma/{header}.h>").unwrap();
        }
        c.push_str("int main(void) {\n");
        let mut expected = Vec::new();
        for (name, value) in NUMBERS.iter().copied() {
            let kind = if value > i128::from(i64::MAX) { "%llu" } else { "%lld" };
            writeln!(c, "printf(\"{kind}\\n\", (long long)({name}));").unwrap();
            expected.push((name.to_owned(), value));
        }
        for (name, size, fields) in structures() {
            if let Some(size) = size {
                writeln!(c, "printf(\"%zu\\n\", sizeof(struct {name}));").unwrap();
                expected.push((name.to_owned(), size as i128));
            }
            for (field, offset) in fields {
                let field = field.trim_start_matches("r#");
                writeln!(c, "printf(\"%zu\\n\", offsetof(struct {name}, {field}));").unwrap();
                expected.push((format!("{name}.{field}"), offset as i128));
            }
        }
        c.push_str("return 0; }\n");
        (c, expected)
    }

    #[test]
    fn the_layouts_are_those_of_the_headers() {
        let (source, expected) = program();
        let directory = std::env::temp_dir().join(format!("plexus-ofi-layout-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let (file, binary) = (directory.join("layout.c"), directory.join("layout"));
        let probe = "#include <rdma/fi_domain.h>\nint main(void) { return 0; }\n";
        let compile = |text: &str| {
            std::fs::write(&file, text).unwrap();
            Command::new("cc").arg("-o").arg(&binary).arg(&file).output()
        };
        if !compile(probe).is_ok_and(|probe| probe.status.success()) {
            println!("skipped: no C compiler, or no headers of libfabric (package libfabric-dev)");
            std::fs::remove_dir_all(&directory).unwrap();
            return;
        }
        let compiled = compile(&source).unwrap();
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        let printed = Command::new(&binary).output().unwrap().stdout;
        std::fs::remove_dir_all(&directory).unwrap();
        let printed: Vec<i128> =
            String::from_utf8(printed).unwrap().lines().map(|line| line.parse().unwrap()).collect();
        assert_eq!(printed.len(), expected.len());
        for ((what, ours), theirs) in expected.into_iter().zip(printed) {
            assert_eq!(ours, theirs, "{what}");
        }
    }
}
