//! Commands on the values of keys, one file or folder per data type.

pub(crate) mod bitmap;
pub(crate) mod blocking;
pub(crate) mod collection;
pub(crate) mod computed;
pub(crate) mod float;
pub(crate) mod geo;
pub(crate) mod hash;
pub(crate) mod hyperloglog;
pub(crate) mod list;
pub(crate) mod multi_key;
pub(crate) mod set;
pub(crate) mod set_options;
pub(crate) mod stream;
pub(crate) mod string;
pub(crate) mod zset;
