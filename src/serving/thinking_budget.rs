//! Limits reasoning. Once a model has spent its reasoning tokens, the only token that may follow is the next one of the tag that ends the
//! reasoning. After that, reasoning may not begin again.

use std::collections::VecDeque;
use std::sync::Arc;

use chat::ReasoningMeter;
use grammar::Compiler;
use logits::{Allowed, Constraint, Grammar, mask_words};
use tokenizer::Tokenizer;

/// The rules of an answer, with a limit on the reasoning before it.
pub(super) struct ThinkingBudget {
    tokenizer: Arc<Tokenizer>,
    vocab_size: usize,
    meter: ReasoningMeter,
    close: &'static str,
    close_ids: Vec<u32>,
    openers: Arc<[u32]>,
    most: u32,
    rules: Option<Arc<dyn Grammar>>,
}

impl std::fmt::Debug for ThinkingBudget {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.debug_struct("ThinkingBudget").field("most", &self.most).field("rules", &self.rules).finish_non_exhaustive()
    }
}

impl ThinkingBudget {
    /// `meter`: counts the reasoning, from where the answer begins. `tags`: the tags that open and close reasoning. `most`: the most tokens
    /// of reasoning.
    pub(super) fn new(
        grammars: &Compiler,
        meter: ReasoningMeter,
        tags: (&'static str, &'static str),
        most: u32,
        rules: Option<Arc<dyn Grammar>>,
    ) -> Self {
        let (tokenizer, vocab_size) = (grammars.tokenizer().clone(), grammars.vocab_size());
        let (openers, close) = (openers(grammars, tags.0.trim()), tags.1);
        let close_ids = tokenizer.encode(close, true);
        Self { tokenizer, vocab_size, meter, close, close_ids, openers, most, rules }
    }
}

/// The tokens that can complete the tag `open`: those that begin with a suffix of the tag.
fn openers(grammars: &Compiler, open: &str) -> Arc<[u32]> {
    let tokenizer = grammars.tokenizer();
    let bytes = |id: &u32| tokenizer.token_bytes(*id, true).unwrap_or_default();
    let ends = open.char_indices().map(|(at, _)| &open.as_bytes()[at..]);
    let within =
        ends.flat_map(|end| grammars.beginning(end[0]).iter().copied().filter(|id| bytes(id).starts_with(end)).collect::<Vec<_>>());
    within.chain(tokenizer.encode(open, true)).collect()
}

impl Grammar for ThinkingBudget {
    fn start(&self) -> Box<dyn Constraint> {
        let mut position = BudgetState {
            tokenizer: self.tokenizer.clone(),
            vocab_size: self.vocab_size,
            meter: self.meter.clone(),
            close: self.close,
            close_ids: self.close_ids.clone(),
            openers: self.openers.clone(),
            most: self.most,
            rules: self.rules.as_ref().map(|rules| rules.start()),
            due: VecDeque::new(),
        };
        position.check();
        Box::new(position)
    }
}

struct BudgetState {
    tokenizer: Arc<Tokenizer>,
    vocab_size: usize,
    meter: ReasoningMeter,
    close: &'static str,
    close_ids: Vec<u32>,
    openers: Arc<[u32]>,
    most: u32,
    rules: Option<Box<dyn Constraint>>,
    /// The rest of the closing tag, once the budget is spent.
    due: VecDeque<u32>,
}

impl BudgetState {
    /// Forces the closing tag if the budget is spent.
    fn check(&mut self) {
        let Some(written) = self.meter.num_closing() else { return };
        if self.meter.tokens() + self.meter.held() >= self.most {
            self.due = self.rest_of_tag(written).into();
        }
    }

    /// Forbids the tokens that would reopen reasoning after the budget is spent.
    fn without_openers(&self, allowed: Allowed) -> Allowed {
        let missing = self.meter.reopening().filter(|_| self.meter.tokens() >= self.most);
        let Some(missing) = missing.map(str::as_bytes) else { return allowed };
        let mut words = match allowed {
            Allowed::All => vec![u32::MAX; mask_words(self.vocab_size)],
            Allowed::Mask(words) => words,
            Allowed::End => return Allowed::End,
        };
        for &id in self.openers.iter().filter(|id| self.tokenizer.token_bytes(**id, true).unwrap_or_default().starts_with(missing)) {
            if let Some(word) = words.get_mut(id as usize / 32) {
                *word &= !(1 << (id % 32));
            }
        }
        Allowed::Mask(words)
    }

    /// The ids of the closing tag after its first `written` bytes. If no id starts there, the whole tag.
    fn rest_of_tag(&self, written: usize) -> Vec<u32> {
        let (mut len, mut ids) = (0, self.close_ids.iter());
        while len < written
            && let Some(id) = ids.next()
        {
            len += self.tokenizer.token_bytes(*id, true).unwrap_or_default().len();
        }
        if len == written && written < self.close.len() { ids.copied().collect() } else { self.close_ids.clone() }
    }
}

impl Constraint for BudgetState {
    fn accept(&mut self, id: u32) -> Result<(), String> {
        if let Some(rules) = &mut self.rules {
            rules.accept(id)?;
        }
        self.meter.push(self.tokenizer.token_bytes(id, true).unwrap_or_default());
        match self.due.pop_front() {
            Some(due) if due == id => Ok(()),
            Some(due) => Err(format!("the reasoning must end with the token {due}, and {id} came")),
            None => {
                self.check();
                Ok(())
            }
        }
    }

    fn allowed(&mut self) -> Result<Allowed, String> {
        let Some(&due) = self.due.front() else {
            let allowed = self.rules.as_mut().map_or(Ok(Allowed::All), |rules| rules.allowed())?;
            return Ok(self.without_openers(allowed));
        };
        let mut mask = vec![0; mask_words(self.vocab_size)];
        match mask.get_mut(due as usize / 32) {
            Some(word) => *word |= 1 << (due % 32),
            None => return Err(format!("the vocabulary has no token {due}, with which the reasoning must end")),
        }
        Ok(Allowed::Mask(mask))
    }

    fn fork(&self) -> Option<Box<dyn Constraint>> {
        let rules = match &self.rules {
            Some(rules) => Some(rules.fork()?),
            None => None,
        };
        Some(Box::new(Self {
            tokenizer: self.tokenizer.clone(),
            vocab_size: self.vocab_size,
            meter: self.meter.clone(),
            close: self.close,
            close_ids: self.close_ids.clone(),
            openers: self.openers.clone(),
            most: self.most,
            rules,
            due: self.due.clone(),
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::*;
    use chat::{AnswerStart, Dialect};
    use grammar::testing::compiler;
    use template::ChatTemplate;

    static RIG: LazyLock<(Compiler, Arc<Tokenizer>)> = LazyLock::new(|| compiler(fixtures::vocabulary("smollm2").path()));
    const OPENED: AnswerStart = AnswerStart::Reasoning { begun: false };

    fn budget(entry: AnswerStart, most: u32) -> Box<dyn Constraint> {
        let (grammars, tokenizer) = &*RIG;
        let template = ChatTemplate::new("{{ messages[0].content }}<think></think>", "", "").unwrap();
        let thinking = Dialect::of(&template, tokenizer).reasons().unwrap();
        let meter = ReasoningMeter::new(thinking, entry);
        ThinkingBudget::new(grammars, meter, (thinking.open, thinking.close), most, None).start()
    }

    fn ids(text: &str) -> Vec<u32> {
        RIG.1.encode_within(text)
    }

    /// The only token that may follow. `None` if several may.
    fn only(place: &mut dyn Constraint) -> Option<u32> {
        let Allowed::Mask(words) = place.allowed().unwrap() else { return None };
        let count: u32 = words.iter().map(|word| word.count_ones()).sum();
        let at = words.iter().position(|word| *word != 0)?;
        (count == 1).then(|| at as u32 * 32 + words[at].trailing_zeros())
    }

    fn allows(place: &mut dyn Constraint, id: u32) -> bool {
        match place.allowed().unwrap() {
            Allowed::All => true,
            Allowed::Mask(words) => words[id as usize / 32] >> (id % 32) & 1 == 1,
            Allowed::End => false,
        }
    }

    /// Accepts tokens while only one may follow. Returns their text.
    fn forced(place: &mut dyn Constraint) -> String {
        let mut written = Vec::new();
        while let Some(id) = only(place) {
            place.accept(id).unwrap();
            written.push(id);
        }
        RIG.1.decode(&written, true)
    }

    fn write(place: &mut dyn Constraint, ids: &[u32]) {
        for id in ids {
            assert!(allows(place, *id), "{id}");
            place.accept(*id).unwrap();
        }
    }

    #[test]
    fn reasoning_ends_with_the_token_that_is_its_last() {
        let thought = ids("Let me think about it for a while.");
        for most in 0..thought.len() {
            let mut place = budget(OPENED, most as u32);
            write(&mut *place, &thought[..most]);
            assert_eq!(forced(&mut *place), "</think>", "{most}");
            write(&mut *place, &ids("\n\nThe answer, which may be long."));
            let mut place = budget(AnswerStart::Turn, most as u32);
            write(&mut *place, &ids("\n<think>"));
            write(&mut *place, &thought[..most]);
            assert_eq!(forced(&mut *place), "</think>", "{most}");
        }
        let mut place = budget(AnswerStart::Text, 0);
        write(&mut *place, &ids("<think> is a tag, and this is no reasoning."));
    }

    #[test]
    fn a_closing_tag_that_has_begun_is_completed() {
        let close = ids("</think>");
        assert!(close.len() > 2, "the tag has several tokens");
        for begun in 1..close.len() {
            let mut place = budget(OPENED, 1 + begun as u32);
            write(&mut *place, &ids("A"));
            write(&mut *place, &close[..begun]);
            let rest = RIG.1.decode(&close[begun..], true);
            assert_eq!(forced(&mut *place), rest);
        }
        // Tokens of the tag do not count, so the model may end its reasoning itself at the limit.
        let mut place = budget(OPENED, 4);
        write(&mut *place, &ids("A"));
        write(&mut *place, &close);
        write(&mut *place, &ids(" b c d e f g"));
    }

    #[test]
    fn reasoning_that_was_ended_does_not_begin_again() {
        let (open, mut place) = (ids("<think>"), budget(OPENED, 1));
        write(&mut *place, &ids("A"));
        assert_eq!(forced(&mut *place), "</think>");
        let (last, before) = open.split_last().unwrap();
        write(&mut *place, &ids("\n"));
        write(&mut *place, before);
        assert!(!allows(&mut *place, *last));
        write(&mut *place, &ids(" so it is text"));
        write(&mut *place, &open);
        // Before the limit, reasoning may begin again, and the count goes on.
        let mut place = budget(OPENED, 3);
        write(&mut *place, &[ids("A"), ids("</think>"), ids("\n"), open, ids("B"), ids("C")].concat());
        assert_eq!(forced(&mut *place), "</think>");
    }
}
