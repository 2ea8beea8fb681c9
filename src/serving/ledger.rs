//! The ledger of a request: its tokens, each counted once, and its times. The usage in its answer, its log line, its spans and the limits
//! of its key read it, while the request runs and after it has ended.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use super::output::{Counts, EndReason};
use scheduler::{DraftCounts, Progress};

/// Receives a number of tokens when they are counted.
type Charge = Rc<dyn Fn(u64)>;

/// The accounts of a request. Clones share them.
#[derive(Clone, Default)]
pub struct Ledger {
    accounts: Rc<RefCell<Vec<Account>>>,
    charge: Option<Charge>,
}

/// The account of one generation or one text. Clones share it.
#[derive(Clone, Default)]
pub struct Account(Rc<AccountState>);

#[derive(Default)]
struct AccountState {
    prompt: u32,
    generated: Cell<u32>,
    reasoning: Cell<u32>,
    /// How the generation has ended, if it has.
    end: Cell<Option<EndReason>>,
    /// Whether the prompt is counted elsewhere, because several choices share it.
    shares_prompt: Cell<bool>,
    /// The sequence, and that of a second try.
    sequences: RefCell<Vec<Arc<Progress>>>,
    charge: OnceCell<Charge>,
}

/// How much of a prompt has been computed [tokens]. `processed` includes `cached`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PromptProgress {
    pub total: u32,
    pub cached: u32,
    pub processed: u32,
}

impl Ledger {
    /// Creates a ledger that also passes all tokens to `charge` when it counts them.
    pub fn charging(charge: impl Fn(u64) + 'static) -> Self {
        Self { charge: Some(Rc::new(charge)), ..Self::default() }
    }

    /// Enters the account of a generation or a text. `shares_prompt`: whether an account that was entered before counts its prompt.
    pub fn enter(&self, account: &Account, shares_prompt: bool) {
        account.0.shares_prompt.set(shares_prompt);
        self.accounts.borrow_mut().push(account.clone());
        if let Some(charge) = &self.charge {
            charge(u64::from(account.counts().prompt));
            account.0.charge.get_or_init(|| charge.clone());
        }
    }

    /// The accounts in the order in which they were entered.
    pub fn accounts(&self) -> Vec<Account> {
        self.accounts.borrow().clone()
    }

    /// The account that was entered as number `index`.
    pub fn account(&self, index: usize) -> Option<Account> {
        self.accounts.borrow().get(index).cloned()
    }

    /// The account of the first generation or text.
    pub fn first(&self) -> Option<Account> {
        self.account(0)
    }

    /// The tokens so far.
    pub fn counts(&self) -> Counts {
        self.sum(|_| true)
    }

    /// The tokens so far. Cached tokens and reasoning count once their generation has ended.
    pub fn settled_counts(&self) -> Counts {
        self.sum(|account| account.0.end.get().is_some())
    }

    fn sum(&self, is_settled: impl Fn(&Account) -> bool) -> Counts {
        let counts = |account: &Account| match account.counts() {
            counts if is_settled(account) => counts,
            Counts { prompt, generated, .. } => Counts { prompt, generated, ..Counts::default() },
        };
        self.accounts.borrow().iter().map(counts).fold(Counts::default(), Counts::plus)
    }

    /// How the generations have ended, each way once.
    pub fn ends(&self) -> Vec<EndReason> {
        let accounts = self.accounts.borrow();
        let ends = accounts.iter().filter_map(|account| account.0.end.get());
        ends.fold(Vec::new(), |mut ends, end| {
            if !ends.contains(&end) {
                ends.push(end);
            }
            ends
        })
    }

    /// The earliest time of its kind among the accounts.
    pub fn earliest(&self, of: impl Fn(&Account) -> Option<Instant>) -> Option<Instant> {
        self.accounts.borrow().iter().filter_map(of).min()
    }

    /// The progress of the first prompt. `None` once the prompt has been computed.
    pub fn prompt_progress(&self) -> Option<PromptProgress> {
        let account = self.first().filter(|account| account.prefilled().is_none())?;
        let (total, cached, processed) = (account.prompt_tokens(), account.cached_tokens(), account.computed_tokens());
        Some(PromptProgress { total, cached, processed })
    }
}

impl Account {
    pub(super) fn new(prompt_tokens: usize) -> Self {
        let prompt = u32::try_from(prompt_tokens).unwrap_or(u32::MAX);
        Self(Rc::new(AccountState { prompt, ..AccountState::default() }))
    }

    /// The account of a single sequence.
    pub(super) fn of(progress: &Arc<Progress>) -> Self {
        let account = Self::new(progress.prompt_tokens() as usize);
        account.follow(progress);
        account
    }

    /// Follows a sequence: the first one, or that of a second try.
    pub(super) fn follow(&self, progress: &Arc<Progress>) {
        self.0.sequences.borrow_mut().push(progress.clone());
    }

    /// Counts a token of the answer.
    pub(super) fn count_generated(&self) {
        self.0.generated.update(|count| count + 1);
        self.0.charge.get().into_iter().for_each(|charge| charge(1));
    }

    /// Counts tokens of the answer that are reasoning.
    pub(super) fn count_reasoning(&self, count: u32) {
        self.0.reasoning.update(|before| before + count);
    }

    pub(super) fn end(&self, reason: EndReason) {
        self.0.end.set(Some(reason));
    }

    /// The tokens so far. A prompt that is counted elsewhere does not count.
    pub(super) fn counts(&self) -> Counts {
        let prompt = |tokens| if self.0.shares_prompt.get() { 0 } else { tokens };
        let (generated, reasoning) = (self.generated_tokens(), self.0.reasoning.get());
        Counts { prompt: prompt(self.0.prompt), cached: prompt(self.cached_tokens()), generated, reasoning, drafts: self.drafts() }
    }

    fn first<T>(&self, of: impl FnOnce(&Progress) -> T) -> Option<T> {
        self.0.sequences.borrow().first().map(|progress| of(progress))
    }

    /// Number of tokens in the client's prompt.
    pub fn prompt_tokens(&self) -> u32 {
        self.0.prompt
    }

    /// Number of those tokens that the prefix cache held.
    pub fn cached_tokens(&self) -> u32 {
        self.first(Progress::cached_tokens).unwrap_or(0)
    }

    /// Number of those tokens that were computed so far or found in the prefix cache.
    pub fn computed_tokens(&self) -> u32 {
        self.first(Progress::computed_tokens).unwrap_or(0)
    }

    /// Number of tokens of the answer, over all tries.
    pub fn generated_tokens(&self) -> u32 {
        self.0.generated.get()
    }

    /// The drafts that were verified, over all tries.
    pub fn drafts(&self) -> DraftCounts {
        self.0.sequences.borrow().iter().map(|progress| progress.drafts()).fold(DraftCounts::default(), DraftCounts::plus)
    }

    /// When the request entered the engine's queue. None if it needs no engine.
    pub fn arrived(&self) -> Option<Instant> {
        self.first(Progress::arrived)
    }

    /// When the request began to run.
    pub fn admitted(&self) -> Option<Instant> {
        self.first(Progress::admitted).flatten()
    }

    /// When the prompt was computed.
    pub fn prefilled(&self) -> Option<Instant> {
        self.first(Progress::prefilled).flatten()
    }

    /// The time of the latest token, or of the end.
    pub fn last(&self) -> Option<Instant> {
        self.0.sequences.borrow().iter().rev().find_map(|progress| progress.last())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_counts_once_for_the_usage_and_the_charge() {
        let charged = Rc::new(Cell::new(0));
        let ledger = Ledger::charging({
            let charged = charged.clone();
            move |tokens| charged.set(charged.get() + tokens)
        });
        let choices = [Account::new(7), Account::new(7)];
        choices.iter().enumerate().for_each(|(index, account)| ledger.enter(account, index > 0));
        assert_eq!((ledger.counts().prompt, charged.get()), (7, 7), "both choices have the same prompt");
        choices.iter().for_each(Account::count_generated);
        choices[1].count_reasoning(1);
        assert_eq!(ledger.settled_counts(), Counts { prompt: 7, generated: 2, ..Counts::default() });
        choices[1].end(EndReason::Stop);
        assert_eq!(ledger.settled_counts(), Counts { prompt: 7, generated: 2, reasoning: 1, ..Counts::default() });
        assert_eq!((ledger.settled_counts(), charged.get()), (ledger.counts(), 9));
        choices[0].end(EndReason::Stop);
        assert_eq!((ledger.ends(), choices[1].prompt_tokens()), (vec![EndReason::Stop], 7));
    }
}
