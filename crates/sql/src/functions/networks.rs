//! Functions of addresses of networks (chapter 9.12 of PostgreSQL's manual).

use super::{Call, Declared, function, ok};
use crate::{
    error::Result,
    types::{Type, Value, network::Network},
};

pub(super) static FUNCTIONS: &[Declared] = &[
    function("<<(inet, inet) bool", |call| {
        both(call, |one, other| other.bits < one.bits && other.contains(one))
    }),
    function("<<=(inet, inet) bool", |call| both(call, |one, other| other.contains(one))),
    function(">>(inet, inet) bool", |call| {
        both(call, |one, other| one.bits < other.bits && one.contains(other))
    }),
    function(">>=(inet, inet) bool", |call| both(call, |one, other| one.contains(other))),
    function("&&(inet, inet) bool", |call| {
        both(call, |one, other| one.contains(other) || other.contains(one))
    }),
    function("abbrev(cidr) text", |call| of(call, Network::abbreviated)),
    function("abbrev(inet) text", |call| of(call, |network| network.print(Type::Inet))),
    function("family(inet) int4", |call| of(call, |network| i32::from(network.family()))),
    function("host(inet) text", |call| of(call, Network::host)),
    function("masklen(inet) int4", |call| of(call, |network| i32::from(network.bits))),
    function("network(inet) cidr", |call| of(call, |network| network.network().value())),
    function("text(inet) text", |call| of(call, Network::whole)),
];

fn of<T: Into<Value>>(call: &Call<'_>, act: fn(Network) -> T) -> Result<Value> {
    ok(Network::of(call.bytes(0)).map(act))
}

fn both(call: &Call<'_>, act: fn(Network, Network) -> bool) -> Result<Value> {
    ok(Network::of(call.bytes(0)).zip(Network::of(call.bytes(1))).map(|(one, other)| act(one, other)))
}
