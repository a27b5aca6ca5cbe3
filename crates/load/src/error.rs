//! The reason why a benchmark stopped, in words for the user.

/// Result of each step that can stop a figure.
pub type Result<T> = std::result::Result<T, Failure>;

/// The action that failed, and the cause.
#[derive(Debug)]
pub struct Failure {
    doing: String,
    cause: String,
}

impl Failure {
    pub fn new(doing: impl Into<String>, cause: impl std::fmt::Display) -> Failure {
        Failure {
            doing: doing.into(),
            cause: cause.to_string(),
        }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.doing, self.cause)
    }
}

impl std::error::Error for Failure {}

/// Adds the action to an error.
pub trait Doing<T> {
    fn doing(self, what: impl Into<String>) -> Result<T>;
}

impl<T, E: std::fmt::Display> Doing<T> for std::result::Result<T, E> {
    fn doing(self, what: impl Into<String>) -> Result<T> {
        self.map_err(|cause| Failure::new(what, cause))
    }
}
