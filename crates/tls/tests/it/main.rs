//! Tests of TLS sessions and certificates.

mod tls;
