//! Draws that can be had again.

/// A small generator, split by a number for each who draws.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64, who: u64) -> Self {
        let mut dice = Self(seed ^ who.wrapping_mul(0xA076_1D64_78BD_642F));
        dice.draw();
        dice
    }

    fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number from 0 to `most - 1`.
    pub fn below(&mut self, most: u64) -> u64 {
        self.draw() % most.max(1)
    }

    /// The place of one of so many.
    pub fn place(&mut self, of: usize) -> usize {
        usize::try_from(self.below(of as u64)).unwrap_or_default()
    }

    /// Happens once in `n` times.
    pub fn once_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}
