//! Arguments that may be passwords: neither MONITOR nor the slow log nor the audit log shows them.

/// The text that is shown instead of a secret.
pub(crate) const REDACTED: &[u8] = b"(redacted)";

/// Which arguments of a command may be passwords.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Secrets {
    None,
    /// This argument and all behind it.
    From(u8),
}

impl Secrets {
    pub(super) fn has(self, argument: usize) -> bool {
        match self {
            Secrets::None => false,
            Secrets::From(first) => argument >= usize::from(first),
        }
    }
}
