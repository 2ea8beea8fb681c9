//! Searches for the inputs that cost the server the most per kilobyte, at each place where a client's text becomes something larger.
//!
//! ```text
//! growth SECONDS [PLACE]          search each place, or one: half of the seconds by memory, half by time
//! growth once PLACE NUMBER…       measure one input
//! ```
//!
//! The serving process is measured, as in the product: a child process compiles grammars on trial, and its own use does not count here
//! because it has a budget. Each input runs in a separate process, so that an input that exhausts memory ends nothing else.

mod input;
mod measure;
mod places;
mod search;

fn main() {
    // This program, run with a special argument, is also the trial's process.
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
