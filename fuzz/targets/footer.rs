//! Payloads of `RESTORE` whose footers are right, for more than one target.

/// CRC64 as in Redis: the polynomial of Jones, reflected.
fn crc64(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ u64::from(*byte), |crc, _| {
            crc >> 1 ^ (crc & 1) * 0x95ac_9329_ac4b_c9b5
        })
    })
}

/// A payload of `RESTORE` with a right footer.
pub fn sealed(content: &[u8]) -> Vec<u8> {
    let mut payload = [content, &9u16.to_le_bytes()].concat();
    let crc = crc64(&payload);
    payload.extend_from_slice(&crc.to_le_bytes());
    payload
}
