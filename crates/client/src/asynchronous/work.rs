//! A piece of work that owns its bytes, so that no caller has to keep them.

use crate::core::{AsWork, Work};
use duramen_wire::native::message::{Operation, Single};

/// A piece of work whose key and value are in one allocation, one after the other.
#[derive(Debug)]
pub(super) struct OwnedWork {
    /// The work, with an empty key, value or name.
    form: Work<'static>,
    key_bytes: usize,
    bytes: Box<[u8]>,
}

impl OwnedWork {
    pub fn of(work: Work<'_>) -> OwnedWork {
        match work {
            Work::Table(name) => OwnedWork {
                form: Work::Table(""),
                key_bytes: name.len(),
                bytes: name.as_bytes().into(),
            },
            Work::Enumerate {
                table,
                range,
                cursor,
                bytes_max,
            } => OwnedWork {
                form: Work::Enumerate {
                    table,
                    range,
                    cursor,
                    bytes_max,
                },
                key_bytes: 0,
                bytes: Box::default(),
            },
            Work::Operation(single) => {
                let (operation, value) = without_value(single.operation);
                OwnedWork {
                    form: Work::Operation(Single {
                        key: &[],
                        operation,
                        table: single.table,
                        level: single.level,
                        rpc: None,
                    }),
                    key_bytes: single.key.len(),
                    bytes: [single.key, value].concat().into(),
                }
            }
        }
    }

    /// Bytes of its key and value.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }
}

fn without_value(operation: Operation<'_>) -> (Operation<'static>, &[u8]) {
    match operation {
        Operation::Read => (Operation::Read, &[]),
        Operation::Remove { condition } => (Operation::Remove { condition }, &[]),
        Operation::Increment { by } => (Operation::Increment { by }, &[]),
        Operation::Write {
            value,
            condition,
            expiry,
        } => {
            let form = Operation::Write {
                value: &[],
                condition,
                expiry,
            };
            (form, value)
        }
    }
}

impl AsWork for OwnedWork {
    fn as_work(&self) -> Work<'_> {
        let (key, value) = self.bytes.split_at(self.key_bytes);
        match self.form {
            Work::Operation(single) => {
                let operation = match single.operation {
                    Operation::Write {
                        condition, expiry, ..
                    } => Operation::Write {
                        value,
                        condition,
                        expiry,
                    },
                    other => other,
                };
                Work::Operation(Single {
                    key,
                    operation,
                    ..single
                })
            }
            // The bytes come from a string, so they are valid.
            Work::Table(_) => Work::Table(std::str::from_utf8(key).unwrap_or_default()),
            other => other,
        }
    }
}
