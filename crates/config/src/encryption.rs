//! The source of the key of an encrypted store.

use super::ServerConfig;
use duramen_cipher::KeySource;
use std::path::PathBuf;

impl ServerConfig {
    /// The source of the key with which this server encrypts its disk; `None` if it does not
    /// encrypt.
    pub fn key_source(&self) -> Option<KeySource> {
        if !self.encryption_key_file.is_empty() {
            return Some(KeySource::File(PathBuf::from(&self.encryption_key_file)));
        }
        let command = &self.encryption_key_command;
        (!command.is_empty()).then(|| KeySource::Command(command.clone()))
    }
}
