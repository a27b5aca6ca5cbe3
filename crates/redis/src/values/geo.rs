//! Places on the earth: members of sorted sets, whose scores are geohashes.

use super::collection::{Write, encoded, read, typed};
use super::computed::computed_at_once;
use super::zset;
use crate::command::context::{Context, Done, Failure, NOT_A_FLOAT, NOT_AN_INTEGER, SYNTAX};
use crate::command::row::*;
use duramen_engine::Guard;
use duramen_types::geo::{Place, Region};
use duramen_types::{Sorted, Text, find_at_most_once};
use duramen_wire::resp::number::parse_integer;

#[rustfmt::skip] // They are rows of a table.
pub(crate) const COMMANDS: &[Spec] = &[
    row("geoadd", -5, DENYOOM, doc(Topic::Geo, "3.2.0", "O(N)", "Adds places."),
        Keys::one(UPDATES),
        Effect::Writes(Growth::By(|args, _| growth::texts(args, 2) + growth::SCORE_BYTES * (args.len() / 3))), Secrets::None, Run::Data(geoadd))
            .differs("Longitude 180 lies in the last cell."),
    row("geodist", -4, NO_FLAGS, doc(Topic::Geo, "3.2.0", "O(1)", "Returns the distance of two places."),
        Keys::one(READS), Effect::Reads, Secrets::None, Run::Data(geodist)),
    row("geohash", -2, NO_FLAGS, doc(Topic::Geo, "3.2.0", "O(N)", "Returns geohashes of places."),
        Keys::one(READS), Effect::Reads, Secrets::None, Run::Data(geohash)),
    row("geopos", -2, NO_FLAGS, doc(Topic::Geo, "3.2.0", "O(N)", "Returns longitudes and latitudes of places."),
        Keys::one(READS), Effect::Reads, Secrets::None, Run::Data(geopos)),
    row("geosearch", -7, NO_FLAGS, doc(Topic::Geo, "6.2.0", "O(N)", "Returns the places in a region."),
        Keys::one(READS), Effect::Reads, Secrets::None, Run::Atomic(geosearch))
            .differs("Unsorted results come in the order of scores."),
    row("geosearchstore", -8, DENYOOM, doc(Topic::Geo, "6.2.0", "O(N)", "Stores the places in a region."),
        Keys::two(SETS, READS), Effect::Writes(Growth::Combines), Secrets::None, Run::Atomic(geosearchstore)),
    row("georadius", -6, DENYOOM, doc(Topic::Geo, "3.2.0", "O(N)", "Returns or stores the places around a place."),
        Keys::and_store(6, READS, SETS).misses(Misses::First), Effect::Writes(Growth::Stores), Secrets::None, Run::Atomic(georadius)),
    row("georadius_ro", -6, NO_FLAGS, doc(Topic::Geo, "3.2.10", "O(N)", "Returns the places around a place."),
        Keys::one(READS), Effect::Reads, Secrets::None, Run::Atomic(georadius_ro)),
    row("georadiusbymember", -5, DENYOOM, doc(Topic::Geo, "3.2.0", "O(N)", "Returns or stores the places around a member."),
        Keys::and_store(5, READS, SETS).misses(Misses::First), Effect::Writes(Growth::Stores), Secrets::None, Run::Atomic(georadiusbymember)),
    row("georadiusbymember_ro", -5, NO_FLAGS, doc(Topic::Geo, "3.2.10", "O(N)", "Returns the places around a member."),
        Keys::one(READS), Effect::Reads, Secrets::None, Run::Atomic(georadiusbymember_ro)),
];

const BAD_UNIT: Failure = Failure::Text("ERR unsupported unit provided. please use M, KM, FT, MI");

/// Metres of a unit.
fn parse_unit(text: &[u8]) -> Result<f64, Failure> {
    match text.to_ascii_lowercase().as_slice() {
        b"m" => Ok(1.0),
        b"km" => Ok(1000.0),
        b"ft" => Ok(0.3048),
        b"mi" => Ok(1609.34),
        _ => Err(BAD_UNIT),
    }
}

fn parse_place(longitude: &[u8], latitude: &[u8]) -> Result<Place, Failure> {
    let place = Place {
        longitude: zset::parse_score(longitude).ok_or(NOT_A_FLOAT)?,
        latitude: zset::parse_score(latitude).ok_or(NOT_A_FLOAT)?,
    };
    if !place.is_valid() {
        let (longitude, latitude) = (place.longitude, place.latitude);
        let text = format!("ERR invalid longitude,latitude pair {longitude:.6},{latitude:.6}");
        return Err(text.into());
    }
    Ok(place)
}

/// Replies with a number of four digits after the point, as Redis shows distances.
fn distance_text(metres: f64, unit: f64) -> String {
    format!("{:.4}", metres / unit)
}

/// The text of a coordinate: 17 digits after the point, without zeros at the end.
fn coordinate_text(degrees: f64) -> String {
    let text = format!("{degrees:.17}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn write_place(ctx: &mut Context<'_>, place: &Place) {
    let mut reply = ctx.reply.encoder();
    reply.array(2);
    for degrees in [place.longitude, place.latitude] {
        reply.double_text(&coordinate_text(degrees));
    }
}

pub(crate) fn geoadd(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let mut at = 2;
    let (mut only_new, mut only_present, mut count_changed) = (false, false, false);
    while let Some(option) = ctx.request.args.get(at) {
        let flag = match option.to_ascii_lowercase().as_slice() {
            b"nx" => &mut only_new,
            b"xx" => &mut only_present,
            b"ch" => &mut count_changed,
            _ => break,
        };
        *flag = true;
        at += 1;
    }
    if !(ctx.request.args.len() - at).is_multiple_of(3)
        || only_new && only_present
        || ctx.request.args.len() == at
    {
        return Err(SYNTAX);
    }
    let mut places = Vec::new();
    let mut rest = ctx.request.args.skip(at).into_iter();
    while let (Some(longitude), Some(latitude), Some(member)) =
        (rest.next(), rest.next(), rest.next())
    {
        let place = parse_place(longitude, latitude)?;
        places.push((place.score(), Text::of(member)));
    }
    let options = zset::AddOptions {
        only_new,
        only_present,
        count_changed,
        ..zset::AddOptions::default()
    };
    let done = zset::add_all(ctx, guard, &places, options)?;
    zset::write_added(ctx, &done, options)
}

pub(crate) fn geopos(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let mut set = Sorted::of(read(ctx, guard)?)?;
    let members = ctx.request.args.skip(2);
    set.expect(members.len());
    ctx.reply.encoder().array(members.len());
    for member in members {
        match set.score(&Text::of(member)) {
            Some(score) => write_place(ctx, &Place::of_score(score)),
            None => ctx.reply.encoder().null_array(),
        }
    }
    Ok(())
}

pub(crate) fn geohash(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let mut set = Sorted::of(read(ctx, guard)?)?;
    let members = ctx.request.args.skip(2);
    set.expect(members.len());
    let mut reply = ctx.reply.encoder();
    reply.array(members.len());
    for member in members {
        match set.score(&Text::of(member)) {
            Some(score) => reply.bulk(Place::of_score(score).geohash().as_bytes()),
            None => reply.null(),
        }
    }
    Ok(())
}

pub(crate) fn geodist(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let unit = match ctx.request.args.len() {
        4 => 1.0,
        5 => parse_unit(ctx.arg(4))?,
        _ => return Err(SYNTAX),
    };
    let Some(value) = read(ctx, guard)? else {
        return ctx.reply.null();
    };
    let place = |name| Ok::<_, Failure>(find_at_most_once(value, name)?.map(Place::of_score));
    match (place(ctx.arg(2))?, place(ctx.arg(3))?) {
        (Some(a), Some(b)) => ctx
            .reply
            .bulk(distance_text(a.metres_to(&b), unit).as_bytes()),
        _ => ctx.reply.null(),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    Ascending,
    Descending,
}

/// A search as the request describes it.
struct Search {
    centre: Option<Place>,
    region: Option<Region>,
    /// Metres of the unit.
    unit: f64,
    with_distances: bool,
    with_hashes: bool,
    with_places: bool,
    order: Option<Order>,
    /// Maximum results; 0: all.
    count: usize,
    any: bool,
    /// Whether distances are stored instead of geohashes.
    stores_distances: bool,
    stores: bool,
}

impl Default for Search {
    fn default() -> Self {
        Search {
            centre: None,
            region: None,
            unit: 1.0,
            with_distances: false,
            with_hashes: false,
            with_places: false,
            order: None,
            count: 0,
            any: false,
            stores_distances: false,
            stores: false,
        }
    }
}

/// Parses a length in a unit; returns the metres of the length and of the unit.
fn parse_length(text: &[u8], unit: &[u8], what: &'static str) -> Result<(f64, f64), Failure> {
    let length = zset::parse_score(text).ok_or(Failure::Text(match what {
        "radius" => "ERR need numeric radius",
        "width" => "ERR need numeric width",
        _ => "ERR need numeric height",
    }))?;
    if length < 0.0 {
        return Err(Failure::Text(match what {
            "radius" => "ERR radius cannot be negative",
            _ => "ERR height or width cannot be negative",
        }));
    }
    let unit = parse_unit(unit)?;
    Ok((length * unit, unit))
}

/// The family of a search command: it decides which arguments there are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// The search is around a place, in arguments 2 and 3.
    Place {
        stores: bool,
    },
    /// The search is around a member, argument 2.
    Member {
        stores: bool,
    },
    Search,
    SearchStore,
}

/// The place of a member. Without a set there is nothing to find, and any place will do.
fn place_of(set: Option<&Sorted<'_>>, member: &[u8]) -> Result<Place, Failure> {
    let missing = Failure::Text("ERR could not decode requested zset member");
    match set {
        Some(set) => Ok(Place::of_score(
            set.score(&Text::of(member)).ok_or(missing)?,
        )),
        None => Ok(Place::of_score(0.0)),
    }
}

impl Search {
    /// Parses a request, in the order in which Redis finds its errors. `set`: the set that is
    /// searched, if it exists.
    fn of(ctx: &Context<'_>, form: Form, set: Option<&Sorted<'_>>) -> Result<Search, Failure> {
        let mut search = Search {
            stores: form == Form::SearchStore,
            ..Search::default()
        };
        let at = match form {
            Form::Search => 2,
            Form::SearchStore => 3,
            Form::Place { .. } => {
                search.centre = Some(parse_place(ctx.arg(2), ctx.arg(3))?);
                6
            }
            Form::Member { .. } => {
                search.centre = Some(place_of(set, ctx.arg(2))?);
                5
            }
        };
        if !matches!(form, Form::Search | Form::SearchStore) {
            let (metres, unit) = parse_length(ctx.arg(at - 2), ctx.arg(at - 1), "radius")?;
            (search.region, search.unit) = (Some(Region::Radius(metres)), unit);
        }
        search.parse(ctx, at, form, set)?;
        search.check(ctx, form)?;
        Ok(search)
    }

    /// Parses options from argument `at` on.
    fn parse(
        &mut self,
        ctx: &Context<'_>,
        at: usize,
        form: Form,
        set: Option<&Sorted<'_>>,
    ) -> Done {
        let stores = matches!(
            form,
            Form::Place { stores: true } | Form::Member { stores: true }
        );
        let mut rest = ctx.request.args.skip(at).into_iter();
        while let Some(option) = rest.next() {
            match option.to_ascii_lowercase().as_slice() {
                b"withdist" => self.with_distances = true,
                b"withhash" => self.with_hashes = true,
                b"withcoord" => self.with_places = true,
                b"any" => self.any = true,
                b"asc" => self.order = Some(Order::Ascending),
                b"desc" => self.order = Some(Order::Descending),
                b"count" => {
                    let count = parse_integer(rest.next().ok_or(SYNTAX)?).ok_or(NOT_AN_INTEGER)?;
                    let positive = usize::try_from(count).ok().filter(|count| *count > 0);
                    self.count = positive.ok_or(Failure::Text("ERR COUNT must be > 0"))?;
                }
                b"store" | b"storedist" if stores => {
                    self.stores = true;
                    self.stores_distances = option.len() > "store".len();
                    rest.next().ok_or(SYNTAX)?;
                }
                b"storedist" if form == Form::SearchStore => self.stores_distances = true,
                name if matches!(form, Form::Search | Form::SearchStore) => {
                    self.parse_region(name, &mut rest, set)?;
                }
                _ => return Err(SYNTAX),
            }
        }
        Ok(())
    }

    /// Parses an option with the centre or the form of the region.
    fn parse_region<'a>(
        &mut self,
        name: &[u8],
        rest: &mut impl Iterator<Item = &'a [u8]>,
        set: Option<&Sorted<'_>>,
    ) -> Done {
        let mut next = || rest.next().ok_or(SYNTAX);
        match name {
            b"frommember" if self.centre.is_none() => {
                self.centre = Some(place_of(set, next()?)?);
            }
            b"fromlonlat" if self.centre.is_none() => {
                self.centre = Some(parse_place(next()?, next()?)?);
            }
            b"byradius" if self.region.is_none() => {
                let (metres, unit) = parse_length(next()?, next()?, "radius")?;
                (self.region, self.unit) = (Some(Region::Radius(metres)), unit);
            }
            b"bybox" if self.region.is_none() => {
                let (width, height, text) = (next()?, next()?, next()?);
                let (width, unit) = parse_length(width, text, "width")?;
                let (height, _) = parse_length(height, text, "height")?;
                (self.region, self.unit) = (Some(Region::Box { width, height }), unit);
            }
            _ => return Err(SYNTAX),
        }
        Ok(())
    }

    fn check(&self, ctx: &Context<'_>, form: Form) -> Done {
        let name = String::from_utf8_lossy(ctx.arg(0));
        if self.stores && (self.with_distances || self.with_hashes || self.with_places) {
            let name = match form {
                Form::SearchStore => "GEOSEARCHSTORE",
                _ => "STORE option in GEORADIUS",
            };
            let text = format!(
                "ERR {name} is not compatible with WITHDIST, WITHHASH and WITHCOORD options"
            );
            return Err(text.into());
        }
        if self.centre.is_none() {
            let text =
                format!("ERR exactly one of FROMMEMBER or FROMLONLAT can be specified for {name}");
            return Err(text.into());
        }
        if self.region.is_none() {
            let text = format!("ERR exactly one of BYRADIUS and BYBOX can be specified for {name}");
            return Err(text.into());
        }
        if self.any && self.count == 0 {
            return Err(Failure::Text(
                "ERR the ANY argument requires COUNT argument",
            ));
        }
        Ok(())
    }

    /// The members of the region with score and distance in metres, in the order of the reply.
    fn members<'s>(&self, set: &mut Sorted<'s>) -> Result<Vec<(Text<'s>, f64, f64)>, Failure> {
        let centre = self.centre.ok_or(SYNTAX)?;
        let region = self.region.ok_or(SYNTAX)?;
        let places = set.elements().iter();
        let places = places.filter(|(_, score)| Place::has_score(*score));
        let inside = places.filter_map(|(member, score)| {
            let metres = Place::of_score(*score).metres_within(&centre, region)?;
            Some((*member, *score, metres))
        });
        let mut found: Vec<_> = match self.any {
            true => inside.take(self.count).collect(),
            false => inside.collect(),
        };
        let order = self
            .order
            .or((self.count > 0 && !self.any).then_some(Order::Ascending));
        match order {
            Some(Order::Ascending) => found.sort_by(|a, b| a.2.total_cmp(&b.2)),
            Some(Order::Descending) => found.sort_by(|a, b| b.2.total_cmp(&a.2)),
            None => {}
        }
        if self.count > 0 {
            found.truncate(self.count);
        }
        Ok(found)
    }

    /// Replies with the members.
    fn write(&self, ctx: &mut Context<'_>, found: &[(Text<'_>, f64, f64)]) {
        let shown = [self.with_distances, self.with_hashes, self.with_places];
        let fields = 1 + shown.iter().filter(|shown| **shown).count();
        ctx.reply.encoder().array(found.len());
        for (member, score, metres) in found {
            let mut reply = ctx.reply.encoder();
            if fields > 1 {
                reply.array(fields);
            }
            reply.bulk(&member.bytes());
            if self.with_distances {
                reply.bulk(distance_text(*metres, self.unit).as_bytes());
            }
            if self.with_hashes {
                reply.integer(*score as i64);
            }
            if self.with_places {
                write_place(ctx, &Place::of_score(*score));
            }
        }
    }

    /// Runs the search; the result goes into key number `target` or into the reply.
    fn run(
        &self,
        ctx: &mut Context<'_>,
        form: Form,
        set: &mut Sorted<'_>,
        target: Option<usize>,
    ) -> Result<Vec<Write>, Failure> {
        let found = self.members(set)?;
        let Some(target) = target else {
            self.write(ctx, &found);
            return Ok(Vec::new());
        };
        let mut result = Sorted::default();
        result.expect(found.len());
        for (member, score, metres) in &found {
            let stored = match self.stores_distances {
                true => *metres / self.unit,
                false => *score,
            };
            result.set(*member, stored);
        }
        ctx.reply.integer(found.len() as i64)?;
        let value = encoded(|parts| result.store(parts))?;
        let name = match form {
            Form::SearchStore => "geosearchstore",
            _ => "georadiusstore",
        };
        Ok(vec![Write::result(target, value, true, zset::event(name))])
    }
}

/// Searches key number `source`; `target`: the key of the result, if it is stored.
fn search(
    ctx: &mut Context<'_>,
    guard: &mut Guard<'_>,
    form: Form,
    source: usize,
    target: usize,
) -> Done {
    computed_at_once(ctx, guard, |ctx, found| {
        let value = typed(found.get(source).copied().flatten())?;
        let mut set = Sorted::of(value)?;
        let search = Search::of(ctx, form, value.is_some().then_some(&set))?;
        search.run(ctx, form, &mut set, search.stores.then_some(target))
    })
}

pub(crate) fn geosearch(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    search(ctx, guard, Form::Search, 0, 0)
}

pub(crate) fn geosearchstore(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    search(ctx, guard, Form::SearchStore, 1, 0)
}

pub(crate) fn georadius(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    search(ctx, guard, Form::Place { stores: true }, 0, 1)
}

pub(crate) fn georadius_ro(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    search(ctx, guard, Form::Place { stores: false }, 0, 1)
}

pub(crate) fn georadiusbymember(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    search(ctx, guard, Form::Member { stores: true }, 0, 1)
}

pub(crate) fn georadiusbymember_ro(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    search(ctx, guard, Form::Member { stores: false }, 0, 1)
}
