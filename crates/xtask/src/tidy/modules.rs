//! The modules of a crate, and which of them import which, folder by folder.

use std::collections::BTreeMap;
use std::path::Path;

use super::imports::{Import, Source};
use super::{House, read};

/// Most names that are followed from one import to another one.
const HOPS_MAX: u32 = 8;

/// The names of modules from the root of the crate down to one of them.
pub(super) type Place = Vec<String>;

/// Each module of a folder with its siblings that it imports, and one path for each of these.
pub(super) type Imports = BTreeMap<String, BTreeMap<String, String>>;

/// The modules of a crate that are no tests.
pub(super) struct Modules(BTreeMap<Place, Source>);

/// The modules of each crate, by the folder of its sources.
pub(super) fn of_crates(house: &House) -> Result<BTreeMap<String, Modules>, String> {
    let mut crates: BTreeMap<String, Vec<(&Path, String)>> = BTreeMap::new();
    for file in house.with_extension("rs") {
        let mut above = file.ancestors().skip(1);
        let Some(sources) = above.find(|folder| folder.ends_with("src")) else {
            continue;
        };
        let Ok(inside) = file.strip_prefix(sources) else {
            continue;
        };
        let text = read(&house.root.join(file))?;
        let files = crates.entry(sources.display().to_string()).or_default();
        files.push((inside, text));
    }
    let modules = |(sources, files): (String, Vec<_>)| (sources, Modules::new(&files));
    Ok(crates.into_iter().map(modules).collect())
}

impl Modules {
    /// The modules that the root of a crate leads to, given its files with their paths in `src`.
    pub(super) fn new(files: &[(&Path, String)]) -> Modules {
        let texts: BTreeMap<Place, &String> = files
            .iter()
            .rev() // `lib.rs` replaces `main.rs`
            .filter_map(|(path, text)| Some((place(path)?, text)))
            .collect();
        let mut modules = Modules(BTreeMap::new());
        let mut left = vec![Place::new()];
        while let Some(place) = left.pop() {
            if let Some(text) = texts.get(&place) {
                let source = Source::read(text);
                let children = source.modules.iter().map(|name| joined(&place, name));
                left.extend(children);
                modules.0.insert(place, source);
            }
        }
        modules
    }

    /// The names of the modules of the crate's root.
    pub(super) fn names_at_root(&self) -> Vec<&str> {
        let modules = self.0.keys().filter(|place| place.len() == 1);
        modules.map(|place| place[0].as_str()).collect()
    }

    /// For each folder, by the module that it belongs to, the imports among its modules.
    pub(super) fn imports(&self) -> BTreeMap<Place, Imports> {
        let mut found: BTreeMap<Place, Imports> = BTreeMap::new();
        for (from, source) in &self.0 {
            for import in &source.imports {
                let Some((folder, sibling, target)) =
                    self.siblings(from, from, &import.path, HOPS_MAX)
                else {
                    continue;
                };
                let imports = found.entry(folder).or_default();
                let targets = imports.entry(sibling).or_default();
                targets
                    .entry(target)
                    .or_insert_with(|| import.path.join("::"));
            }
        }
        found
    }

    /// The folder where the ways from the root to `from` and to the path part, and the two modules
    /// there that lead on to each; `None`: the path does not leave `from`, or leads to a module
    /// above it. `scope` has the path.
    fn siblings(
        &self,
        from: &[String],
        scope: &[String],
        path: &[String],
        hops: u32,
    ) -> Option<(Place, String, String)> {
        let mut at = scope.to_vec();
        for (index, part) in path.iter().enumerate() {
            match part.as_str() {
                "crate" => at.clear(),
                "self" => {}
                "super" => drop(at.pop()),
                name if self.0.contains_key(&joined(&at, name)) => at.push(name.to_owned()),
                name => {
                    let hops = hops.checked_sub(1)?;
                    let (scope, mut import) = self.named(&at, name, hops)?;
                    import.extend_from_slice(&path[index + 1..]);
                    return self.siblings(from, &scope, &import, hops);
                }
            }
            if let Some(parted) = (0..at.len()).find(|n| from.get(*n) != Some(&at[*n])) {
                let sibling = from.get(parted)?.clone();
                return Some((at[..parted].to_vec(), sibling, at[parted].clone()));
            }
        }
        None
    }

    /// The import that gives a name to a module: the module that has the import, and its path.
    fn named(&self, module: &[String], name: &str, hops: u32) -> Option<(Place, Vec<String>)> {
        let imports = &self.0.get(module)?.imports;
        let is_called = |import: &Import, wanted| import.name.as_deref() == Some(wanted);
        if let Some(import) = imports.iter().find(|import| is_called(import, name)) {
            return Some((module.to_vec(), import.path.clone()));
        }
        // The names that `pub use child::*` gives are those of the child.
        let hops = hops.checked_sub(1)?;
        let globs = imports.iter().filter(|import| is_called(import, "*"));
        let children = globs.filter_map(|glob| glob.path.last());
        children
            .map(|child| (child, joined(module, child)))
            .find_map(|(child, place)| {
                let items = &self.0.get(&place)?.items;
                let has_it = items.iter().any(|item| item == name)
                    || self.named(&place, name, hops).is_some();
                has_it.then(|| (module.to_vec(), vec![child.clone(), name.to_owned()]))
            })
    }
}

/// The place of a file in `src`; `None`: it holds tests.
pub(super) fn place(file: &Path) -> Option<Place> {
    let mut place: Place = file
        .with_extension("")
        .iter()
        .map(|part| part.to_string_lossy().into_owned())
        .collect();
    if place == ["lib"] || place == ["main"] {
        place.clear();
    }
    place.pop_if(|part| part == "mod");
    (!place.iter().any(|part| part == "tests")).then_some(place)
}

fn joined(place: &[String], name: &str) -> Place {
    let mut joined = place.to_vec();
    joined.push(name.to_owned());
    joined
}
