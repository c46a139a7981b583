//! Functions of addresses of networks (chapter 9.12 of PostgreSQL's manual).

use super::{CIDR, Call, Function, INET, INT4, TEXT, function, ok};
use crate::{
    error::Result,
    types::{Type, Value, network::Network},
};

pub(super) static FUNCTIONS: &[Function] = &[
    function("abbrev", &[CIDR], TEXT, |call| of(call, Network::abbreviated)),
    function("abbrev", &[INET], TEXT, |call| of(call, |network| network.print(Type::Inet))),
    function("family", &[INET], INT4, |call| of(call, |network| i32::from(network.family()))),
    function("host", &[INET], TEXT, |call| of(call, Network::host)),
    function("masklen", &[INET], INT4, |call| of(call, |network| i32::from(network.bits))),
    function("network", &[INET], CIDR, |call| of(call, |network| network.network().value())),
    function("text", &[INET], TEXT, |call| of(call, Network::whole)),
];

fn of<T: Into<Value>>(call: &Call<'_>, act: fn(Network) -> T) -> Result<Value> {
    ok(Network::of(call.bytes(0)).map(act))
}
