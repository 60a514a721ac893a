//! The capabilities of one process: slots with generations, so that an old number never names a new object.
//!
//! A capability is put in by two steps: [`CapTable::reserve`] is the only one that allocates or fails, [`CapTable::commit`] cannot fail. So an
//! operation can reserve its slot, then do its work, and then publish the result.

use alloc::vec::Vec;
use core::alloc::Layout;

use abi::CapId;

/// Slots that a table can have at all: an index has 16 bits.
pub const SLOTS_MAX: usize = 1 << 16;

/// "No slot" in the list of free ones.
const NONE: u32 = u32::MAX;
/// In the link of a slot that holds an object, or whose generations are used up.
const TAKEN: u32 = u32::MAX - 1;
/// In the link of a slot that is reserved.
const RESERVED: u32 = u32::MAX - 2;
/// Slots of the first allocation.
const SLOTS_FIRST: usize = 16;

/// There is no room: the limit is reached, all generations are used up, or there is no memory to grow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Full;

/// A slot that is kept for an object. It must be given to [`CapTable::commit`] or [`CapTable::abort`] of the table it comes from;
/// if it is dropped, the slot is lost until the table is.
#[must_use = "a reserved slot must be committed or aborted"]
#[derive(Debug, PartialEq, Eq)]
pub struct Reserved {
    index: u16,
}

#[derive(Debug)]
struct Slot<O> {
    /// The next free slot, or one of the constants above, which say what the slot is.
    link: u32,
    /// The generation of the object that is here or comes here next; never 0.
    generation: u16,
    object: Option<O>,
}

/// The table. `O` is what the kernel keeps for a capability.
#[derive(Debug)]
pub struct CapTable<O> {
    slots: Vec<Slot<O>>,
    free: u32,
    /// Objects and reservations.
    in_use: u32,
    reserved: u32,
    limit: u32,
}

impl<O> CapTable<O> {
    /// An empty table for at most `limit` capabilities at a time. It allocates nothing yet.
    pub const fn new(limit: usize) -> CapTable<O> {
        let limit = if limit > SLOTS_MAX { SLOTS_MAX } else { limit };
        CapTable { slots: Vec::new(), free: NONE, in_use: 0, reserved: 0, limit: limit as u32 }
    }

    /// Keeps a slot. The only method that allocates.
    pub fn reserve(&mut self) -> Result<Reserved, Full> {
        if self.in_use >= self.limit {
            return Err(Full);
        }
        let index = if self.free == NONE {
            self.grow()?
        } else {
            let index = self.free;
            self.free = self.slots[index as usize].link;
            index
        };
        self.slots[index as usize].link = RESERVED;
        self.in_use += 1;
        self.reserved += 1;
        Ok(Reserved { index: index as u16 })
    }

    /// Puts `object` into the slot that was kept for it.
    ///
    /// # Panics
    /// If the reservation is another table's and this one has none there.
    pub fn commit(&mut self, reserved: Reserved, object: O) -> CapId {
        let slot = self.reserved_slot(&reserved);
        slot.link = TAKEN;
        slot.object = Some(object);
        let generation = slot.generation;
        self.reserved -= 1;
        CapId::new(reserved.index, generation)
    }

    /// Gives up the slot. Its number was never published, so its generation stays.
    ///
    /// # Panics
    /// As [`CapTable::commit`].
    pub fn abort(&mut self, reserved: Reserved) {
        let free = self.free;
        self.reserved_slot(&reserved).link = free;
        self.free = u32::from(reserved.index);
        self.in_use -= 1;
        self.reserved -= 1;
    }

    /// The object that `cap` names; nothing if there never was one, or it is gone.
    #[inline]
    pub fn get(&self, cap: CapId) -> Option<&O> {
        let slot = self.slots.get(usize::from(cap.index()))?;
        if slot.generation != cap.generation() {
            return None;
        }
        slot.object.as_ref()
    }

    /// As [`CapTable::get`], to be changed.
    #[inline]
    pub fn get_mut(&mut self, cap: CapId) -> Option<&mut O> {
        let slot = self.slots.get_mut(usize::from(cap.index()))?;
        if slot.generation != cap.generation() {
            return None;
        }
        slot.object.as_mut()
    }

    /// Takes the object that `cap` names out. `cap` names nothing from now on, for ever.
    pub fn remove(&mut self, cap: CapId) -> Option<O> {
        let slot = self.slots.get_mut(usize::from(cap.index()))?;
        if slot.generation != cap.generation() {
            return None;
        }
        let object = slot.object.take()?;
        self.in_use -= 1;
        // With the last generation the slot is retired: a generation that came again would bring old numbers back to life.
        if let Some(next) = slot.generation.checked_add(1) {
            slot.generation = next;
            slot.link = self.free;
            self.free = u32::from(cap.index());
        }
        Some(object)
    }

    /// Takes the objects out one by one, with their slots, the last one first, so that a table of thousands can be dropped in pieces. A slot without
    /// an object yields `None`.
    pub fn into_objects(self) -> impl Iterator<Item = Option<O>> {
        let mut slots = self.slots;
        core::iter::from_fn(move || slots.pop().map(|slot| slot.object))
    }

    /// All capabilities, by index.
    pub fn iter(&self) -> impl Iterator<Item = (CapId, &O)> {
        self.iter_between(0, self.slots.len())
    }

    /// The capabilities in the slots from `from` up to `to`: a piece of a long search.
    pub fn iter_between(&self, from: usize, to: usize) -> impl Iterator<Item = (CapId, &O)> {
        self.slots.iter().enumerate().take(to).skip(from).filter_map(|(index, slot)| {
            slot.object.as_ref().map(|object| (CapId::new(index as u16, slot.generation), object))
        })
    }

    /// Slots that there are, in use or not.
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// How many objects are in it.
    pub const fn len(&self) -> usize {
        (self.in_use - self.reserved) as usize
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many capabilities it takes at a time.
    pub const fn limit(&self) -> usize {
        self.limit as usize
    }

    /// Slots that memory is held for.
    pub fn capacity(&self) -> usize {
        self.slots.capacity()
    }

    /// If the next [`CapTable::reserve`] needs memory: the slots that there will be memory for, instead of [`CapTable::capacity`].
    #[inline]
    pub fn growth(&self) -> Option<usize> {
        let slots = self.slots.len();
        let is_full = self.free == NONE && slots == self.slots.capacity();
        (is_full && self.in_use < self.limit && slots < SLOTS_MAX)
            .then(|| slots + slots.max(SLOTS_FIRST).min(SLOTS_MAX - slots))
    }

    /// The memory of so many slots; `None` for no slots.
    pub fn layout(slots: usize) -> Option<Layout> {
        Layout::array::<Slot<O>>(slots).ok().filter(|layout| layout.size() > 0)
    }

    fn grow(&mut self) -> Result<u32, Full> {
        let index = self.slots.len();
        if index == SLOTS_MAX {
            return Err(Full);
        }
        if let Some(slots) = self.growth() {
            self.slots.try_reserve_exact(slots - index).map_err(|_| Full)?;
        }
        self.slots.push(Slot { link: TAKEN, generation: 1, object: None });
        Ok(index as u32)
    }

    fn reserved_slot(&mut self, reserved: &Reserved) -> &mut Slot<O> {
        match self.slots.get_mut(usize::from(reserved.index)) {
            Some(slot) if slot.link == RESERVED => slot,
            _ => panic!("captable: slot {} is not reserved in this table", reserved.index),
        }
    }
}
