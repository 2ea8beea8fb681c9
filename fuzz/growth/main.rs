//! Searches, for each place where a client's text becomes something larger, the input that costs the server the most per kilobyte.
//!
//! ```text
//! growth SECONDS [PLACE]          search each place, or one, for half of the seconds by memory and half by time
//! growth once PLACE NUMBER…       measure one input
//! ```
//!
//! What is measured is the process that serves, as in the product: grammars are compiled on trial by a child of it, whose own use has a
//! budget and does not count here. Each input has a process of its own, so that one that takes everything ends nothing else.

mod input;
mod measure;
mod places;
mod search;

fn main() {
    // A trial's process is this program with an argument of its own.
    grammar::enable_trials();
    let args: Vec<String> = std::env::args().skip(1).collect();
    let place = |name: &String| {
        let known = places::ALL.iter().find(|place| place.name == name.as_str());
        known.unwrap_or_else(|| panic!("no place `{name}`: {:?}", places::ALL.iter().map(|place| place.name).collect::<Vec<_>>()))
    };
    match args.as_slice() {
        [once, name, numbers @ ..] if once == "once" => {
            let numbers: Vec<u32> = numbers.iter().map(|number| number.parse().expect("a number")).collect();
            println!("{}", measure::once(place(name), &numbers));
        }
        [seconds, names @ ..] => {
            let seconds: f64 = seconds.parse().expect("a number of seconds");
            let chosen: Vec<_> = if names.is_empty() { places::ALL.iter().collect() } else { names.iter().map(place).collect() };
            for place in chosen {
                search::run(place, seconds);
            }
        }
        [] => eprintln!("growth SECONDS [PLACE], or growth once PLACE NUMBER…"),
    }
}
