use super::*;

/// Panics or dawdles at a given guess.
#[derive(Debug)]
struct Faulty {
    panics: bool,
}

impl Drafter for Faulty {
    fn kind(&self) -> DrafterKind {
        DrafterKind::Known
    }

    fn propose(&mut self, history: History<'_>, most: usize, out: &mut Vec<u32>) -> usize {
        out.extend(std::iter::repeat_n(9, 2 * most));
        if history.generated.len() >= 5 {
            assert!(!self.panics, "a bug in the drafter");
            std::thread::sleep(SLOW * 2);
        }
        usize::MAX
    }
}

fn history(generated: &[u32]) -> History<'_> {
    History { prompt: &[1, 2], generated }
}

fn cost(row: f64) -> DraftCost {
    DraftCost { row, guess: None }
}

/// Number of drafts that a sequence alone would run.
fn num_sent(drafts: &mut Drafts, row_cost: f64) -> usize {
    let num = drafts.send(0, MAX_DRAFTS, 0.0, &mut StepCost::new(1, row_cost)).len();
    drafts.land();
    num
}

#[test]
fn a_drafter_that_panics_or_is_slow_is_dropped() {
    for panics in [false, true] {
        let mut drafts = Drafts { sources: vec![Source::new(Faulty { panics })], most: 16, ..Drafts::default() };
        let text = [9; 12];
        for len in 1..12 {
            drafts.guess(history(&text[..len]), 1, 4);
            let is_dropped = len >= if panics { 5 } else { 4 + MAX_SLOW as usize };
            assert_eq!(num_sent(&mut drafts, 0.1), if is_dropped { 0 } else { 4 }, "{len} tokens, panics: {panics}");
        }
    }
}

#[test]
fn drafts_get_longer_in_copied_text_and_vanish_in_new_text() {
    let (mut drafts, row_cost) = (Drafts::new(&DraftOptions::default(), cost(0.2)), 0.2);
    let copied: Vec<u32> = (0..200).map(|i| i % 50).collect();
    let mut text = Vec::new();
    for &id in &copied {
        text.push(id);
        drafts.guess(history(&text), 1, MAX_DRAFTS);
    }
    assert!(num_sent(&mut drafts, row_cost) >= 8);
    // Pairs repeat, but what follows them does not.
    let mut sent = Vec::new();
    for i in 0..200 {
        text.extend([500, 501, 600 + i]);
        for at in text.len() - 3..text.len() {
            drafts.guess(history(&text[..=at]), 1, MAX_DRAFTS);
            sent.push(num_sent(&mut drafts, row_cost));
        }
    }
    assert!(sent[300..].iter().sum::<usize>() < 10, "{:?}", &sent[300..]);
}

#[test]
fn a_request_bounds_its_drafts() {
    let sent = |options: DraftOptions| {
        let mut drafts = Drafts::new(&DraftOptions { prediction: Some((100..140).collect()), ..options }, cost(0.1));
        for len in 0..20 {
            let text: Vec<u32> = (100..100 + len).collect();
            drafts.guess(history(&text), usize::from(len > 0), MAX_DRAFTS);
        }
        num_sent(&mut drafts, 0.1)
    };
    let all = sent(DraftOptions::default());
    assert!(all > 6);
    assert_eq!(sent(DraftOptions { most: Some(3), ..DraftOptions::default() }), 3);
    assert_eq!(sent(DraftOptions { most: Some(0), ..DraftOptions::default() }), 0);
    assert_eq!(sent(DraftOptions { fewest: 17, ..DraftOptions::default() }), 0);
    assert_eq!(sent(DraftOptions { least_probability: 1.0, ..DraftOptions::default() }), 0);
}

#[test]
fn tokens_in_flight_come_before_the_drafts() {
    let known = KnownAnswer { tokens: (0..30).collect(), accept: 1.0 };
    let mut drafts = Drafts::new(&DraftOptions { known: Some(known), ..DraftOptions::default() }, cost(0.1));
    drafts.guess(history(&[0, 1]), 2, 6);
    let mut cost = StepCost::new(1, 0.1);
    assert_eq!(drafts.send(1, 3, 0.0, &mut cost), [3, 4, 5]);
    drafts.land();
    assert_eq!(drafts.send(1, 16, 0.0, &mut cost), [3, 4, 5, 6, 7]);
    drafts.land();
    assert!(drafts.send(1, 3, 3.5, &mut cost).is_empty(), "too little gain");
}

fn with_head() -> DraftCost {
    DraftCost { guess: Some(GuessCost { kind: DrafterKind::Heads, pass: 0.1, row: 0.0 }), ..cost(0.1) }
}

/// The tokens to ask for in a step of `num_rows` rows.
fn num_to_ask(drafts: &Drafts, num_rows: usize) -> usize {
    drafts.num_to_ask(Asking { num_rows, most: 16, num_unread: 1, num_left: 100 })
}

#[test]
fn a_head_is_asked_unless_a_lookup_promises_more() {
    let mut drafts = Drafts::new(&DraftOptions::default(), with_head());
    let new: Vec<u32> = (100..140).collect();
    // the head is right until the last tokens, then wrong
    for len in 1..40 {
        drafts.guess(history(&new[..len]), 1, MAX_DRAFTS);
        let num = num_to_ask(&drafts, 1);
        assert!(num > 0 || len > 32, "{len}");
        assert!(num_to_ask(&drafts, 64) <= num, "rows of many sequences cost more");
        if num > 0 {
            let guess = if len < 24 { new[len..].iter().copied().take(num).collect() } else { vec![7; num] };
            drafts.bring(history(&new[..len]), guess);
            assert!(len > 26 || num_sent(&mut drafts, 0.1) > 0, "{len}");
        }
    }
    assert_eq!(num_to_ask(&drafts, 1), 0, "its guesses were wrong");
    // text that repeats needs no head
    let copied: Vec<u32> = (0..120).map(|i| i % 20).collect();
    let mut drafts = Drafts::new(&DraftOptions::default(), with_head());
    (1..120).for_each(|len| drafts.guess(history(&copied[..len]), 1, MAX_DRAFTS));
    assert_eq!(num_to_ask(&drafts, 1), 0);
    assert!(num_sent(&mut drafts, 0.1) > 4);
    let none = Drafts::new(&DraftOptions { most: Some(0), ..DraftOptions::default() }, with_head());
    assert_eq!(num_to_ask(&none, 1), 0);
}
