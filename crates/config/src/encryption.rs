//! The source of the key of an encrypted store.

use super::ServerConfig;
use crate::error::ServerError;
use duramen_cipher::KeySource;
use std::path::PathBuf;

impl ServerConfig {
    pub(super) fn check_encryption(&self) -> Result<(), ServerError> {
        if self.encryption_key_file.is_empty() || self.encryption_key_command.is_empty() {
            return Ok(());
        }
        Err(ServerError::Config(
            "encryption-key-file and encryption-key-command are both set: leave one of them out"
                .to_owned(),
        ))
    }

    /// The source of the key with which this server encrypts what it writes; `None`: it does not.
    pub fn key_source(&self) -> Option<KeySource> {
        if !self.encryption_key_file.is_empty() {
            return Some(KeySource::File(PathBuf::from(&self.encryption_key_file)));
        }
        let command = &self.encryption_key_command;
        (!command.is_empty()).then(|| KeySource::Command(command.clone()))
    }
}
