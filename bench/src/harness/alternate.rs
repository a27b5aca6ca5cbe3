//! Runs contenders in turn (A B A B …), so that drift of a shared machine affects all of them
//! alike, and takes medians.

use super::Result;

/// One side of a comparison: a name, and a run that returns its figure.
pub struct Contender<'a> {
    pub name: String,
    pub run: Box<dyn FnMut() -> Result<f64> + 'a>,
}

impl<'a> Contender<'a> {
    pub fn new(name: impl Into<String>, run: impl FnMut() -> Result<f64> + 'a) -> Contender<'a> {
        Contender {
            name: name.into(),
            run: Box::new(run),
        }
    }
}

/// Runs every contender once per round, in order; returns the median of each over the rounds, in
/// the order given.
pub fn alternate(rounds: usize, contenders: &mut [Contender<'_>]) -> Result<Vec<f64>> {
    let mut figures = vec![Vec::with_capacity(rounds); contenders.len()];
    for _ in 0..rounds.max(1) {
        for (contender, figures) in contenders.iter_mut().zip(&mut figures) {
            figures.push((contender.run)()?);
        }
    }
    Ok(figures.iter().map(|f| median(f)).collect())
}

/// The middle value; the mean of the two middle ones for an even count; NaN for none.
pub fn median(figures: &[f64]) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    match (sorted.len(), sorted.len() / 2) {
        (0, _) => f64::NAN,
        (n, middle) if n % 2 == 1 => sorted[middle],
        (_, middle) => (sorted[middle - 1] + sorted[middle]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_ignores_order_and_outliers() {
        assert_eq!(median(&[5.0, 1.0, 1000.0]), 5.0);
        assert_eq!(median(&[4.0, 2.0]), 3.0);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn contenders_take_turns() {
        let order = std::cell::RefCell::new(String::new());
        let run = |name: char, figure: f64| {
            let order = &order;
            Contender::new(name, move || {
                order.borrow_mut().push(name);
                Ok(figure)
            })
        };
        let medians = alternate(3, &mut [run('a', 1.0), run('b', 2.0)]).unwrap();
        assert_eq!(medians, [1.0, 2.0]);
        assert_eq!(*order.borrow(), "ababab");
    }
}
