//! Places on the earth as scores of a sorted set: 26 bits of longitude and 26 of latitude,
//! interleaved, so that close places often have close scores.
//!
//! - G1: a score is below 2^52, so a double holds it exactly.

/// Maximum degrees of longitude.
pub const LONGITUDE_MAX: f64 = 180.0;
/// Maximum degrees of latitude: those of Web Mercator (EPSG:3857), as in Redis.
pub const LATITUDE_MAX: f64 = 85.051_128_78;
/// Radius of the earth in metres, as in Redis.
const RADIUS_METRES: f64 = 6_372_797.560_856;
const BITS: u32 = 26;
const ALPHABET: &[u8; 32] = b"0123456789bcdefghjkmnpqrstuvwxyz";
/// Characters of a geohash: 55 bits, of which 52 are known.
const HASH_CHARACTERS: u32 = 11;

/// A place, in degrees.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Place {
    pub longitude: f64,
    pub latitude: f64,
}

/// The region of a search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Region {
    /// Metres around the centre.
    Radius(f64),
    /// Metres from west to east, and from south to north, around the centre.
    Box { width: f64, height: f64 },
}

impl Place {
    /// Whether a score can hold the place.
    pub fn is_valid(&self) -> bool {
        (-LONGITUDE_MAX..=LONGITUDE_MAX).contains(&self.longitude)
            && (-LATITUDE_MAX..=LATITUDE_MAX).contains(&self.latitude)
    }

    /// The score (G1).
    pub fn score(&self) -> f64 {
        self.interleaved(LATITUDE_MAX) as f64
    }

    fn interleaved(&self, latitude_max: f64) -> u64 {
        // The maximum itself belongs to the last cell (G1).
        let cell = |degrees: f64, max: f64| {
            let cell = ((degrees + max) / (2.0 * max) * f64::from(1u32 << BITS)) as u64;
            cell.min((1 << BITS) - 1)
        };
        spread(cell(self.latitude, latitude_max)) | spread(cell(self.longitude, LONGITUDE_MAX)) << 1
    }

    /// Whether a score is that of a place (G1).
    pub fn has_score(score: f64) -> bool {
        (0.0..(1u64 << (2 * BITS)) as f64).contains(&score)
    }

    /// The centre of the cell with this score. As in Redis, a score that has no cell gives a place
    /// at the border.
    pub fn of_score(score: f64) -> Place {
        let bits = score as i64 as u64;
        let centre = |cell: u64, max: f64| {
            let edge = |cell: u64| -max + cell as f64 / f64::from(1u32 << BITS) * (2.0 * max);
            ((edge(cell) + edge(cell + 1)) / 2.0).clamp(-max, max)
        };
        Place {
            longitude: centre(gather(bits >> 1), LONGITUDE_MAX),
            latitude: centre(gather(bits), LATITUDE_MAX),
        }
    }

    /// The standard geohash, whose latitudes reach from -90 to 90.
    pub fn geohash(&self) -> String {
        let bits = self.interleaved(90.0);
        let character = |n: u32| {
            let shift = (2 * BITS).checked_sub((n + 1) * 5);
            let place = shift.map_or(0, |shift| bits >> shift & 31);
            ALPHABET.get(place as usize).copied().unwrap_or(b'0') as char
        };
        (0..HASH_CHARACTERS).map(character).collect()
    }

    /// Metres to another place, along a great circle.
    pub fn metres_to(&self, other: &Place) -> f64 {
        let (a, b) = (self.latitude.to_radians(), other.latitude.to_radians());
        let v = ((other.longitude.to_radians() - self.longitude.to_radians()) / 2.0).sin();
        if v == 0.0 {
            return RADIUS_METRES * (b - a).abs();
        }
        let u = ((b - a) / 2.0).sin();
        2.0 * RADIUS_METRES * (u * u + a.cos() * b.cos() * v * v).sqrt().asin()
    }

    /// Metres from the centre of a region to this place; `None` if the place is outside.
    pub fn metres_within(&self, centre: &Place, region: Region) -> Option<f64> {
        if let Region::Box { width, height } = region {
            let north = RADIUS_METRES * (self.latitude - centre.latitude).to_radians().abs();
            let beside = Place {
                longitude: centre.longitude,
                latitude: self.latitude,
            };
            if north > height / 2.0 || self.metres_to(&beside) > width / 2.0 {
                return None;
            }
        }
        let metres = centre.metres_to(self);
        match region {
            Region::Radius(radius) if metres > radius => None,
            _ => Some(metres),
        }
    }
}

/// Moves bit n to bit 2n.
fn spread(mut x: u64) -> u64 {
    x &= 0xffff_ffff;
    for (shift, mask) in [
        (16, 0x0000_ffff_0000_ffff),
        (8, 0x00ff_00ff_00ff_00ff),
        (4, 0x0f0f_0f0f_0f0f_0f0f),
        (2, 0x3333_3333_3333_3333),
        (1, 0x5555_5555_5555_5555),
    ] {
        x = (x | x << shift) & mask;
    }
    x
}

/// Moves bit 2n to bit n.
fn gather(mut x: u64) -> u64 {
    x &= 0x5555_5555_5555_5555;
    for (shift, mask) in [
        (1, 0x3333_3333_3333_3333),
        (2, 0x0f0f_0f0f_0f0f_0f0f),
        (4, 0x00ff_00ff_00ff_00ff),
        (8, 0x0000_ffff_0000_ffff),
        (16, 0x0000_0000_ffff_ffff),
    ] {
        x = (x | x >> shift) & mask;
    }
    x
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PALERMO: Place = Place {
        longitude: 13.361_389,
        latitude: 38.115_556,
    };
    const CATANIA: Place = Place {
        longitude: 15.087_269,
        latitude: 37.502_669,
    };

    /// The examples of Redis's documentation.
    #[test]
    fn scores_hashes_and_distances_are_those_of_redis() {
        assert_eq!(PALERMO.score(), 3_479_099_956_230_698.0);
        assert_eq!(CATANIA.score(), 3_479_447_370_796_909.0);
        let (palermo, catania) = (
            Place::of_score(PALERMO.score()),
            Place::of_score(CATANIA.score()),
        );
        assert_eq!(palermo.geohash(), "sqc8b49rny0");
        assert_eq!(catania.geohash(), "sqdtr74hyu0");
        assert_eq!(format!("{:.4}", palermo.metres_to(&catania)), "166274.1516");
    }

    #[test]
    fn the_last_degree_is_in_the_last_cell() {
        let corner = Place {
            longitude: LONGITUDE_MAX,
            latitude: LATITUDE_MAX,
        };
        assert_eq!(corner.score(), ((1u64 << 52) - 1) as f64);
        assert!(Place::of_score(corner.score()).metres_to(&corner) < 1.0);
    }

    #[test]
    fn regions_end_at_their_borders() {
        let metres = PALERMO.metres_to(&CATANIA);
        assert!(
            CATANIA
                .metres_within(&PALERMO, Region::Radius(metres - 1.0))
                .is_none()
        );
        assert!(
            CATANIA
                .metres_within(&PALERMO, Region::Radius(metres + 1.0))
                .is_some()
        );
        for (width, height, inside) in [(4e5, 4e5, true), (2e5, 4e5, false), (4e5, 1e5, false)] {
            let region = Region::Box { width, height };
            assert_eq!(CATANIA.metres_within(&PALERMO, region).is_some(), inside);
        }
    }

    proptest! {
        #[test]
        fn a_score_keeps_a_place_to_a_metre(longitude in -180.0..180.0, latitude in -85.0..85.0) {
            let place = Place { longitude, latitude };
            prop_assert!(place.is_valid() && place.score() < (1u64 << 52) as f64);
            prop_assert!(Place::of_score(place.score()).metres_to(&place) < 1.0);
            prop_assert_eq!(Place::of_score(place.score()).score(), place.score());
        }

        #[test]
        fn any_score_is_a_place(score: f64) {
            let place = Place::of_score(score);
            prop_assert!(place.is_valid());
            place.geohash();
        }
    }
}
