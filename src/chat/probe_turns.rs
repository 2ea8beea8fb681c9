//! Finds by trial renders which orders of messages a chat template takes. If the template shows every text of an order, it gets such
//! messages unchanged. Otherwise it gets them in the least changed form among those in which it shows the most texts.

use super::dialect::{Alternation, CallForm, CallText, Dialect, SystemPlace, TurnOrder};
use super::tools::Tools;
use super::trial::{Trials, tools};

/// Conversations that begin with a system message, the letter `s`.
const HEADS: [&str; 4] = ["su", "sua", "sucr", "sucra"];
/// Conversations with a system message after the first turn.
const LATE: [&str; 9] = ["usu", "us", "uas", "uasu", "usau", "susu", "ucrs", "ucrsu", "ucsr"];
/// Conversations in which the user and the assistant do not take turns.
const UNEVEN: [&str; 12] = ["uu", "uuau", "uaau", "au", "sau", "ucru", "ucruau", "ucu", "ucuau", "uacrau", "ucrau", "ucrcra"];
/// Conversations that do not begin with the user, or have no message of the user.
const USERLESS: [&str; 4] = ["s", "au", "sau", "cru"];
/// Conversations with a message of a role that no template knows.
const CUSTOM: [&str; 3] = ["x", "ux", "suxau"];

/// Conversations with a message between a call and its result.
const APART: [&str; 4] = ["ucur", "ucurau", "ucar", "ucarau"];
/// Conversations with a result that belongs to no call.
const LONE: [&str; 7] = ["ul", "ulau", "ulu", "lu", "ual", "ucral", "ullaul"];

/// The orders of messages that the template takes. `dialect`: the form in which it takes calls, results and tools.
pub(super) fn turns(trials: &Trials, dialect: &Dialect) -> TurnOrder {
    let probe = TurnProbe { trials, dialect, tools: tools() };
    let mut turns = TurnOrder::ALL;
    let lists = [false, true].map(|needs_tools| TurnOrder { needs_tools, ..turns });
    let Some(plain) = lists.into_iter().find(|turns| probe.shows(turns, "u")) else { return turns };
    turns = plain;
    turns.system = probe.system(&turns);
    turns.late_system = LATE.iter().all(|letters| probe.shows(&turns, letters) || !probe.shows(&turns, &letters.replace('s', "")));
    let orders = [Alternation::Free, Alternation::Joined, Alternation::Strict];
    turns.alternation = probe.best(orders, &UNEVEN, |alternation| TurnOrder { alternation, ..turns });
    turns.needs_user = probe.best([false, true], &USERLESS, |needs_user| TurnOrder { needs_user, ..turns });
    turns.several_calls = probe.best([true, false], &["udrr", "udrrau"], |several_calls| TurnOrder { several_calls, ..turns });
    turns.late_results = turns.alternation == Alternation::Free && APART.iter().all(|letters| probe.shows(&turns, letters));
    turns.lone_results = probe.best([true, false], &LONE, |lone_results| TurnOrder { lone_results, ..turns });
    turns.call_text = probe.call_text(turns);
    turns.custom_roles = CUSTOM.iter().all(|letters| probe.shows(&turns, letters));
    // The time ran out during the trials, so their results mean nothing.
    if trials.is_over() { TurnOrder::ALL } else { turns }
}

struct TurnProbe<'a> {
    trials: &'a Trials<'a>,
    dialect: &'a Dialect,
    tools: Tools,
}

impl TurnProbe<'_> {
    fn shows_with(&self, turns: &TurnOrder, letters: &str, tools: Option<&Tools>) -> bool {
        let dialect = Dialect { turns: *turns, ..self.dialect.clone() };
        self.trials.shows(letters, tools, &dialect)
    }

    /// Whether the template shows all texts of these messages, without tools.
    fn shows(&self, turns: &TurnOrder, letters: &str) -> bool {
        self.shows_with(turns, letters, None)
    }

    /// The first of the forms in which the template shows the most conversations, each tried with and without tools.
    fn best<T: Copy>(&self, forms: impl IntoIterator<Item = T>, conversations: &[&str], turns: impl Fn(T) -> TurnOrder) -> T {
        let most = 2 * conversations.len();
        let mut best: Option<(usize, T)> = None;
        for form in forms {
            let turns = turns(form);
            let shown =
                |letters: &&str| [None, Some(&self.tools)].into_iter().filter(|tools| self.shows_with(&turns, letters, *tools)).count();
            let count = conversations.iter().map(shown).sum();
            if best.is_none_or(|(least, _)| count > least) {
                best = Some((count, form));
            }
            if count == most {
                break;
            }
        }
        best.map(|(_, form)| form).expect("there is a form")
    }

    /// Finds the place where the template shows the system message. Considers only conversations that the template shows without one.
    fn system(&self, turns: &TurnOrder) -> SystemPlace {
        let of = |system| TurnOrder { system, ..*turns };
        let adds =
            |letters: &&str, tools| self.shows_with(turns, letters, tools) || !self.shows_with(turns, &letters.replace('s', ""), tools);
        if HEADS.iter().all(|letters| adds(letters, None) && adds(letters, Some(&self.tools))) {
            return if self.shows(turns, "ssu") { SystemPlace::Messages } else { SystemPlace::OneMessage };
        }
        // If the template moves the text to before the user's last words, the text is put there.
        match self.trials.moves_system(&Dialect { turns: of(SystemPlace::OneMessage), ..self.dialect.clone() }) {
            true => SystemPlace::LastUser,
            false => SystemPlace::FirstUser,
        }
    }

    /// Finds the form in which the template shows the text of a message that also makes a call.
    fn call_text(&self, turns: TurnOrder) -> CallText {
        let syntax = self.dialect.syntax;
        let has_marks = self.dialect.thinking.is_some_and(|thinking| !thinking.head.is_empty());
        let can_insert = self.dialect.calls != CallForm::Text && !syntax.trigger.is_empty();
        // If a family writes calls after a text that has no marks around it, both belong to one message.
        let writes_both = can_insert && syntax.follows_text && !has_marks;
        let forms = [Some(CallText::Content), writes_both.then_some(CallText::Inserted), Some(CallText::Message)];
        let forms = forms.into_iter().flatten().chain(can_insert.then_some(CallText::Inserted));
        self.best(forms, &["utr", "utrau", "utrtra"], |call_text| TurnOrder { call_text, ..turns })
    }
}
