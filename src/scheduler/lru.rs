//! An eviction order for cache entries with owners. Entries are small numbers.
//!
//! The least recently used entry of the owner with the most entries is evicted first. So an owner that floods the cache evicts its own
//! entries, and each of n owners can keep an nth part. With one owner this is a plain LRU.

use std::collections::HashMap;

const NONE: u32 = u32::MAX;

/// A tenant, or None for entries without one.
pub type Owner = Option<u64>;

#[derive(Debug)]
struct List {
    owner: Owner,
    len: usize,
    /// Number of this owner's entries, whether in the list or in use.
    num_owned: usize,
}

/// Numbers below a bound, each at most once, in one list per owner. All operations take constant time except [`Lru::pop`], which looks at
/// each owner.
#[derive(Debug)]
pub struct Lru {
    bound: u32,
    links: Vec<(u32, u32)>, // [bound + lists] (previous, next) of each number, then of each list's head
    list_of: Vec<u32>,      // [bound] list of each number that is in one
    lists: Vec<List>,
    by_owner: HashMap<Owner, u32>,
    len: usize,
}

impl Lru {
    pub fn new(bound: usize) -> Self {
        Self {
            bound: bound as u32,
            links: vec![(NONE, NONE); bound],
            list_of: vec![0; bound],
            lists: Vec::new(),
            by_owner: HashMap::new(),
            len: 0,
        }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn contains(&self, number: u32) -> bool {
        self.links[number as usize].0 != NONE
    }

    /// Counts one more entry of an owner.
    pub fn add_owned(&mut self, owner: Owner) {
        let list = self.list(owner);
        self.lists[list as usize].num_owned += 1;
    }

    /// Counts one entry less of an owner.
    pub fn remove_owned(&mut self, owner: Owner) {
        let list = self.list(owner);
        self.lists[list as usize].num_owned -= 1;
    }

    /// Adds a number as the owner's most recently used one.
    pub fn push(&mut self, number: u32, owner: Owner) {
        debug_assert!(!self.contains(number), "{number} is in the list twice");
        let list = self.list(owner);
        let head = self.bound + list;
        let last = self.links[head as usize].0;
        self.links[number as usize] = (last, head);
        self.links[last as usize].1 = number;
        self.links[head as usize].0 = number;
        self.list_of[number as usize] = list;
        self.lists[list as usize].len += 1;
        self.len += 1;
    }

    /// Removes a number from its list.
    pub fn take(&mut self, number: u32) {
        let (previous, next) = std::mem::replace(&mut self.links[number as usize], (NONE, NONE));
        self.links[previous as usize].1 = next;
        self.links[next as usize].0 = previous;
        self.lists[self.list_of[number as usize] as usize].len -= 1;
        self.len -= 1;
    }

    /// Removes the least recently used number of the owner with the most entries.
    pub fn pop(&mut self) -> Option<u32> {
        let some = self.lists.iter().enumerate().filter(|(_, list)| list.len > 0);
        let (most, _) = some.max_by_key(|(_, list)| list.num_owned.max(list.len))?;
        let first = self.links[self.bound as usize + most].1;
        self.take(first);
        Some(first)
    }

    /// Returns an owner's list: the present one, an unused one, or a new one.
    fn list(&mut self, owner: Owner) -> u32 {
        if let Some(&list) = self.by_owner.get(&owner) {
            return list;
        }
        let unused = self.lists.iter().position(|list| list.len == 0 && list.num_owned == 0);
        let list = unused.unwrap_or(self.lists.len());
        match self.lists.get_mut(list) {
            Some(list) => {
                self.by_owner.remove(&list.owner);
                list.owner = owner;
            }
            None => {
                let head = self.links.len() as u32;
                self.links.push((head, head));
                self.lists.push(List { owner, len: 0, num_owned: 0 });
            }
        }
        self.by_owner.insert(owner, list as u32);
        list as u32
    }

    /// Numbers list by list, each from least to most recently used.
    #[cfg(test)]
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        (self.bound..self.links.len() as u32).flat_map(move |head| {
            let next = move |&number: &u32| Some(self.links[number as usize].1);
            std::iter::successors(next(&head), next).take_while(move |&number| number != head)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_leave_in_the_order_of_their_last_use() {
        let mut lru = Lru::new(4);
        assert_eq!(lru.pop(), None);
        [2, 0, 3].into_iter().for_each(|number| lru.push(number, None));
        lru.take(0);
        assert!(!lru.contains(0) && lru.contains(3) && lru.len() == 2);
        lru.push(0, None);
        assert!(lru.iter().eq([2, 3, 0]));
        assert_eq!([lru.pop(), lru.pop(), lru.pop(), lru.pop()], [Some(2), Some(3), Some(0), None]);
    }

    #[test]
    fn the_owner_that_has_the_most_gives_first() {
        let mut lru = Lru::new(8);
        for (number, owner) in [(0, 1), (1, 2), (2, 2), (3, 1), (4, 2), (5, 2)] {
            lru.push(number, Some(owner));
        }
        assert_eq!([lru.pop(), lru.pop()], [Some(1), Some(2)], "two of each are left");
        (0..4).for_each(|_| lru.add_owned(Some(1)));
        assert_eq!([lru.pop(), lru.pop(), lru.pop()], [Some(0), Some(3), Some(4)], "what is in use counts, too");
        assert!(lru.iter().eq([5]));
    }

    #[test]
    fn the_list_of_an_owner_who_has_left_serves_another() {
        let mut lru = Lru::new(2);
        for owner in 0..1000 {
            lru.add_owned(Some(owner));
            lru.push(1, Some(owner));
            assert_eq!(lru.pop(), Some(1));
            lru.remove_owned(Some(owner));
        }
        assert!(lru.lists.len() == 1 && lru.by_owner.len() == 1 && lru.len() == 0);
    }
}
