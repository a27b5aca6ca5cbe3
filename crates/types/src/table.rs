//! Names, each with an item: a second text in a hash, nothing in a set, a score in a sorted set.
//!
//! Elements keep the order in which they came.

use crate::index::Index;
use crate::packed::{Item, Packed, store, unpack};
use crate::text::Text;
use crate::{Error, Part, Parts};

/// The number of comparisons from which on an index of the names costs less.
pub(crate) const COMPARISONS_MAX: usize = 4096;

/// A decoded collection.
#[derive(Clone, Debug)]
pub struct Table<'a, I> {
    pub(crate) elements: Vec<(Text<'a>, I)>,
    /// Positions of all names; `None`: names are searched one by one.
    index: Option<Index>,
}

/// A set, whose names have no items.
pub type Set<'a> = Table<'a, ()>;
/// A hash, whose items are texts.
pub type Hash<'a> = Table<'a, Text<'a>>;

impl<I> Default for Table<'_, I> {
    fn default() -> Self {
        Table {
            elements: Vec::new(),
            index: None,
        }
    }
}

impl<'a, I: Item<'a>> Table<'a, I> {
    /// Decodes a packed value; without a value the collection is empty.
    ///
    /// # Errors
    /// [`Error::WrongType`], [`Error::Damaged`].
    pub fn of(value: Option<&'a [u8]>) -> Result<Table<'a, I>, Error> {
        let elements = match value {
            Some(value) => Packed::open(value, I::TYPE)?.decode()?,
            None => Vec::new(),
        };
        Ok(Table {
            elements,
            index: None,
        })
    }

    /// As [`of`](Self::of), from the parts.
    ///
    /// # Errors
    /// Those of [`of`](Self::of).
    pub fn load(parts: &impl Parts<'a>) -> Result<Table<'a, I>, Error> {
        Table::of(parts.get(Part::Root))
    }

    /// Replaces the collection's parts, or removes them if it is empty.
    ///
    /// # Errors
    /// [`Error::Full`].
    pub fn store<'p>(&self, parts: &mut impl Parts<'p>) -> Result<(), Error> {
        store(&self.elements, parts)
    }

    /// All elements as bytes, whatever their number.
    pub fn pack(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (name, item) in &self.elements {
            name.encode(&mut bytes);
            item.encode(&mut bytes);
        }
        bytes
    }

    /// The elements that [`pack`](Self::pack) has written.
    ///
    /// # Errors
    /// [`Error::Damaged`].
    pub fn unpack(bytes: &'a [u8]) -> Result<Table<'a, I>, Error> {
        Ok(Table {
            elements: unpack(bytes)?,
            index: None,
        })
    }

    pub fn len(&self) -> usize {
        self.elements.len()
    }

    pub fn is_empty(&self) -> bool {
        self.elements.is_empty()
    }

    /// All elements in order.
    pub fn elements(&self) -> &[(Text<'a>, I)] {
        &self.elements
    }

    /// Prepares for this many calls of [`get`](Self::get) and [`insert`](Self::insert).
    pub fn expect(&mut self, calls: usize) {
        let comparisons = calls.saturating_mul(self.len() + calls);
        if calls > 1 && comparisons > COMPARISONS_MAX && self.index.is_none() {
            self.index = Some(self.new_index());
        }
    }

    fn new_index(&self) -> Index {
        Index::of(self.elements.iter().map(|(name, _)| *name))
    }

    /// The position of a name in the order of the elements.
    #[inline]
    pub fn position(&self, name: &Text<'_>) -> Option<usize> {
        let is_at = |at: usize| self.elements.get(at).is_some_and(|(it, _)| it == name);
        match &self.index {
            Some(index) => index.find(name, is_at),
            None => self.elements.iter().position(|(found, _)| found == name),
        }
    }

    /// The item of a name.
    pub fn get(&self, name: &Text<'_>) -> Option<I> {
        let (_, item) = self.elements.get(self.position(name)?)?;
        Some(*item)
    }

    pub fn has(&self, name: &Text<'_>) -> bool {
        self.position(name).is_some()
    }

    /// Sets the item of a name; returns the item before.
    pub fn insert(&mut self, name: Text<'a>, item: I) -> Option<I> {
        let position = self.position(&name);
        if let Some((_, place)) = position.and_then(|at| self.elements.get_mut(at)) {
            return Some(std::mem::replace(place, item));
        }
        self.add(name, item);
        None
    }

    /// Adds a name that is not in the table.
    pub(crate) fn add(&mut self, name: Text<'a>, item: I) {
        self.elements.push((name, item));
        match &mut self.index {
            None => {}
            Some(index) if index.has_room() => index.add(&name, self.elements.len() - 1),
            Some(_) => self.index = Some(self.new_index()),
        }
    }

    /// Removes names; returns how many of them were there.
    pub fn remove<'n>(&mut self, names: impl ExactSizeIterator<Item = Text<'n>>) -> usize {
        let before = self.len();
        self.index = None;
        if names.len().saturating_mul(before) <= COMPARISONS_MAX || names.len() == 1 {
            for name in names {
                if let Some(position) = self.position(&name) {
                    self.elements.remove(position);
                }
            }
        } else {
            let mut gone = Table::<()>::default();
            gone.expect(names.len());
            for name in names {
                gone.insert(name, ());
            }
            self.elements.retain(|(name, _)| !gone.has(name));
        }
        before - self.len()
    }

    /// Keeps the elements for which `keep` is true.
    pub fn retain(&mut self, keep: impl FnMut(&(Text<'a>, I)) -> bool) {
        self.index = None;
        self.elements.retain(keep);
    }
}
