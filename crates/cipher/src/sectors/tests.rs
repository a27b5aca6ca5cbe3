//! Tests of the cipher of sectors, with the vectors of IEEE 1619-2018.

use super::*;
use duramen_base::random::Random;

/// Keys of vectors 10 to 14: digits of e and of pi.
const KEYS: &str = "2718281828459045235360287471352662497757247093699959574966967627\
                    3141592653589793238462643383279502884197169399375105820974944592";

/// The cipher text of vector 10.
const VECTOR_10: &str = "\
     1c3b3a102f770386e4836c99e370cf9bea00803f5e482357a4ae12d414a3e63b5d31e276f8fe4a8d\
     66b317f9ac683f44680a86ac35adfc3345befecb4bb188fd5776926c49a3095eb108fd1098baec70\
     aaa66999a72a82f27d848b21d4a741b0c5cd4d5fff9dac89aeba122961d03a757123e9870f8acf10\
     00020887891429ca2a3e7a7d7df7b10355165c8b9a6d0a7de8b062c4500dc4cd120c0f7418dae3d0\
     b5781c34803fa75421c790dfe1de1834f280d7667b327f6c8cd7557e12ac3a0f93ec05c52e0493ef\
     31a12d3d9260f79a289d6a379bc70c50841473d1a8cc81ec583e9645e07b8d9670655ba5bbcfecc6\
     dc3966380ad8fecb17b6ba02469a020a84e18e8f84252070c13e9f1f289be54fbc481457778f6160\
     15e1327a02b140f1505eb309326d68378f8374595c849d84f4c333ec4423885143cb47bd71c5edae\
     9be69a2ffeceb1bec9de244fbe15992b11b77c040f12bd8f6a975a44a0f90c29a9abc3d4d8939272\
     84c58754cce294529f8614dcd2aba991925fedc4ae74ffac6e333b93eb4aff0479da9a410e4450e0\
     dd7ae4c6e2910900575da401fc07059f645e8b7e9bfdef33943054ff84011493c27b3429eaedb4ed\
     5376441a77ed43851ad77f16f541dfd269d50d6a5f14fb0aab1cbb4c1550be97f7ab4066193c4caa\
     773dad38014bd2092fa755c824bb5e54c4f36ffda9fcea70b9c6e693e148c151";

/// Vectors 11 to 14: the number of the sector, first and last block of its cipher text.
const VECTORS: [(u64, &str, &str); 4] = [
    (
        0xffff,
        "77a31251618a15e6b92d1d66dffe7b50",
        "a4f9e27b42af8100cb9d59cef9645803",
    ),
    (
        0xffffff,
        "e387aaa58ba483afa7e8eb469778317e",
        "2263a1eef52dd6888c309f5a7d712826",
    ),
    (
        0xffffffff,
        "bf53d2dade78e822a4d949a9bc6766b0",
        "4c82f335abb152c4a93411373aaa8220",
    ),
    (
        0xffffffffff,
        "64497e5a831e4a932c09be3e5393376d",
        "d609d273ad5b0d59631c531f6a0a57b9",
    ),
];

fn bytes(hex: &str) -> Vec<u8> {
    let (pairs, _) = hex.as_bytes().as_chunks::<2>();
    let pairs = pairs.iter().map(|pair| std::str::from_utf8(pair).unwrap());
    pairs
        .map(|pair| u8::from_str_radix(pair, 16).unwrap())
        .collect()
}

fn cipher(hex: &str) -> SectorCipher {
    SectorCipher::new(bytes(hex).as_slice().try_into().unwrap()).unwrap()
}

fn counting() -> Vec<u8> {
    (0..SECTOR_BYTES).map(|n| n as u8).collect()
}

fn encrypted(cipher: &SectorCipher, at: u64, plain: &[u8]) -> Vec<u8> {
    let mut into = vec![0xee; plain.len()];
    cipher.encrypt(at, plain, &mut into);
    into
}

#[test]
fn vectors_of_the_standard() {
    let cipher = cipher(KEYS);
    let plain = counting();
    let at = |sector: u64| sector * SECTOR_BYTES as u64;
    assert_eq!(encrypted(&cipher, at(0xff), &plain), bytes(VECTOR_10));
    for (sector, first, last) in VECTORS {
        let mut found = encrypted(&cipher, at(sector), &plain);
        assert_eq!(found[..16], bytes(first), "sector {sector:x}");
        assert_eq!(found[SECTOR_BYTES - 16..], bytes(last), "sector {sector:x}");
        cipher.decrypt(at(sector), &mut found);
        assert_eq!(found, plain);
    }
}

/// sectors::X1: a sector's result does not depend on those that are encrypted together with it.
#[test]
fn each_sector_stands_for_itself() {
    let cipher = cipher(KEYS);
    let mut random = Random::new(5);
    let plain: Vec<u8> = (0..40 * SECTOR_BYTES)
        .map(|_| random.next_u64() as u8)
        .collect();
    let at = 3 * SECTOR_BYTES as u64;
    let whole = encrypted(&cipher, at, &plain);
    for (n, sector) in plain.chunks(SECTOR_BYTES).enumerate() {
        let from = n * SECTOR_BYTES;
        let alone = encrypted(&cipher, at + from as u64, sector);
        assert_eq!(alone, whole[from..from + SECTOR_BYTES], "sector {n}");
    }
    for (from, until) in [(0, 40), (1, 2), (7, 30), (39, 40)] {
        let (from, until) = (from * SECTOR_BYTES, until * SECTOR_BYTES);
        let mut part = whole[from..until].to_vec();
        cipher.decrypt(at + from as u64, &mut part);
        assert_eq!(part, plain[from..until]);
    }
}

/// sectors::X2: space that was reserved and never written reads as zeros, as without encryption;
/// also in the middle of a torn block.
#[test]
fn sectors_that_were_never_written_are_zeros() {
    let cipher = cipher(KEYS);
    let plain = [counting(), counting(), counting()].concat();
    let mut torn = encrypted(&cipher, 0, &plain);
    torn[SECTOR_BYTES..2 * SECTOR_BYTES].fill(0);
    cipher.decrypt(0, &mut torn);
    assert_eq!(
        torn,
        [counting(), vec![0; SECTOR_BYTES], counting()].concat()
    );
    // Zeros that a store writes are encrypted.
    let zeros = encrypted(&cipher, 0, &[0; SECTOR_BYTES]);
    assert!(zeros.iter().filter(|byte| **byte == 0).count() < 32);
}

/// Bytes encrypted and decrypted in a second by one core.
#[test]
#[ignore = "a measurement: run it in a release build"]
fn by_hand_speed() {
    let cipher = cipher(KEYS);
    let plain = vec![7; 1 << 20];
    let mut into = vec![0; 1 << 20];
    let mut began = std::time::Instant::now();
    for at in 0..1024 {
        cipher.encrypt(at << 20, &plain, &mut into);
    }
    println!("encrypts {:.2} GB/s", 1.074 / began.elapsed().as_secs_f64());
    began = std::time::Instant::now();
    for at in 0..1024 {
        cipher.decrypt(at << 20, &mut into);
    }
    println!("decrypts {:.2} GB/s", 1.074 / began.elapsed().as_secs_f64());
}
