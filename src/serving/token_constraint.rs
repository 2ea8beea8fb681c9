//! Constraints on single token ids: the allowed ids, and runs of ids that must not occur.

use std::sync::Arc;

use logits::{Allowed, Constraint, Grammar, mask_words};

/// Constrains the ids of an answer, in addition to a grammar if there is one.
#[derive(Debug)]
pub(super) struct TokenConstraint {
    /// The allowed ids, one bit per id.
    ids: Vec<u32>,
    /// Runs of ids that must not occur.
    bad: Arc<Vec<Vec<u32>>>,
    grammar: Option<Arc<dyn Grammar>>,
}

impl TokenConstraint {
    /// `allowed`: the allowed ids, or None for all. `bad`: forbidden runs, none of them empty.
    pub(super) fn new(vocab: usize, allowed: Option<&[u32]>, bad: Vec<Vec<u32>>, grammar: Option<Arc<dyn Grammar>>) -> Self {
        let mut ids = vec![if allowed.is_none() { u32::MAX } else { 0 }; mask_words(vocab)];
        for id in allowed.into_iter().flatten() {
            ids[*id as usize / 32] |= 1 << (id % 32);
        }
        Self { ids, bad: Arc::new(bad), grammar }
    }
}

impl Grammar for TokenConstraint {
    fn start(&self) -> Box<dyn Constraint> {
        Box::new(ConstraintState {
            ids: self.ids.clone(),
            bad: self.bad.clone(),
            grammar: self.grammar.as_ref().map(|grammar| grammar.start()),
            last: Vec::new(),
            most: self.bad.iter().map(Vec::len).max().unwrap_or(0).saturating_sub(1),
        })
    }
}

struct ConstraintState {
    ids: Vec<u32>,
    bad: Arc<Vec<Vec<u32>>>,
    grammar: Option<Box<dyn Constraint>>,
    /// The latest ids, at most `most`.
    last: Vec<u32>,
    most: usize,
}

impl Constraint for ConstraintState {
    fn accept(&mut self, id: u32) -> Result<(), String> {
        if self.most > 0 {
            if self.last.len() == self.most {
                self.last.remove(0);
            }
            self.last.push(id);
        }
        self.grammar.as_mut().map_or(Ok(()), |grammar| grammar.accept(id))
    }

    fn allowed(&mut self) -> Result<Allowed, String> {
        let mut mask = self.ids.clone();
        for (last, _) in self.bad.iter().filter_map(|run| run.split_last()).filter(|(_, before)| self.last.ends_with(before)) {
            if let Some(word) = mask.get_mut(*last as usize / 32) {
                *word &= !(1 << (last % 32));
            }
        }
        match self.grammar.as_mut().map(|grammar| grammar.allowed()).transpose()? {
            None | Some(Allowed::All) => {}
            Some(Allowed::End) => return Ok(Allowed::End),
            Some(Allowed::Mask(own)) => mask.iter_mut().zip(own).for_each(|(word, own)| *word &= own),
        }
        match mask.iter().all(|word| *word == 0) {
            true => Err("no token is left that the request allows: permit more ids, or forbid fewer words".into()),
            false => Ok(Allowed::Mask(mask)),
        }
    }

    fn fork(&self) -> Option<Box<dyn Constraint>> {
        let grammar = match &self.grammar {
            Some(grammar) => Some(grammar.fork()?),
            None => None,
        };
        let (ids, bad, last) = (self.ids.clone(), self.bad.clone(), self.last.clone());
        Some(Box::new(Self { ids, bad, grammar, last, most: self.most }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allows(position: &mut dyn Constraint, id: u32) -> bool {
        match position.allowed().unwrap() {
            Allowed::All => true,
            Allowed::End => false,
            Allowed::Mask(mask) => mask[id as usize / 32] & (1 << (id % 32)) != 0,
        }
    }

    #[test]
    fn only_permitted_ids_may_follow() {
        let permitted = TokenConstraint::new(40, Some(&[3, 35]), Vec::new(), None);
        let mut at = permitted.start();
        assert!(allows(&mut *at, 3) && allows(&mut *at, 35) && !allows(&mut *at, 4));
        assert!(TokenConstraint::new(40, Some(&[]), Vec::new(), None).start().allowed().is_err());
    }

    #[test]
    fn a_forbidden_run_never_ends() {
        let permitted = TokenConstraint::new(40, None, vec![vec![7], vec![1, 2, 3]], None);
        let mut at = permitted.start();
        assert!(!allows(&mut *at, 7) && allows(&mut *at, 3));
        for id in [5, 1, 2] {
            assert!(allows(&mut *at, 3));
            at.accept(id).unwrap();
        }
        assert!(!allows(&mut *at, 3) && allows(&mut *at, 2));
        at.accept(2).unwrap();
        assert!(allows(&mut *at, 3), "another token came between");
    }
}
