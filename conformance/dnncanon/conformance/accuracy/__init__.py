"""The accuracy model: arrays that carry the rounding error a correct computation may have.

The reference is run on :class:`ErrorArray` in place of NumPy arrays. Each element carries its value in
float64 and the variance of the error that a backend may have accumulated, and every operation passes
both on. So each reference yields its own error bound; no primitive has a formula for it.

Derivation
----------
*Rounding.* A correctly rounded operation with result v in a format of unit roundoff u has an error of
at most u·|v|. Taken as uniform in that interval its variance is (u·v)²/3 (Higham and Mary 2019 justify
the probabilistic view; TOSA takes the same third).

*Propagation* is of first order: Var f(a, b) = (∂f/∂a)²·Var a + (∂f/∂b)²·Var b, errors of operands taken
as independent. Where the derivative has a pole the second order decides: an error δ of x changes √x by at
most √δ. So it does where the derivative is 0: x² changes by δ², as do distances from a mean where all are 0.

*Elementary functions* are not correctly rounded. Each may be off by some units in the last place beyond
its rounding, taken as uniform too; how many is data of the numerics class (dnncanon.spec.numerics).

*Logarithms of sums.* The error of ln(e^a + e^b) is a mean of the operands' errors, weighted by their shares of
the sum. In a chain of such steps operands are made of the same terms, and their errors are no strangers; so
deviations are averaged, not variances. That holds however they are correlated, and does not grow by itself.

*Sums.* A sum of n terms t_i rounds n−1 times, each time by u·|s_j| of a partial sum s_j, and the order
is the backend's choice. In a random order E s_j² <= Σt² + v², the first for what fluctuates, the second
for what drifts, and the last partial sum is v itself. Hence Var = u²/3·(v² + (n−2)·(Σt² + v²)). To
be independent of the order in which the *reference* happens to add, a sum remembers n and Σt² until it
is used as something else than a term: partial sums of the reference are never rounded. Terms that are
exactly 0 are none, and are left out where they are many.

*Absorption.* Once a sum is so large that u·|s| is no longer small beside its terms, errors are systematic.
The sum lies on a grid of spacing h = u·s to 2u·s, and a term t is rounded to a multiple of it: by a
periodic function of t, whose mean over terms of which no two are alike, spread over k = t/h spacings, is
h/(8k) at most (the integral of a sawtooth is 1/8 at most). Summed over the partial sums s_j = j·t that is a
share of (n·u)²/6 of the sum. Terms that are all alike may be rounded the same way each time, by h/2 at
most but not in two binades of s in a row, which costs n·u/4 in all. And no more can be lost than the
whole. The standard deviation |v|·min(2·(n·u)², n·u/32, 1/8), of which a bound takes 8, covers these three,
the first with room for terms of one binade; it is nothing to speak of while n·u is small.

*Alike terms.* A partial sum s lies on a grid of spacing h, so that the rounding of s + t depends on t mod h
alone: terms that are equal, or have the same last bits, such as x − K with x of few bits, are all rounded
by the same r, at most h/2. Errors of k of them add up to k·r, not √k·r; those of as many terms of −r cancel
them. A finer grid, which earlier terms meet, rounds each by no more. So the drift of a kind of terms is
(k₊ − k₋)·|r|, with h that of the largest partial sum; drifts of several kinds count as squares. Where a sum
grows the first terms are rounded by so much less that n of them drift by n·u·|s|/4 at most (above). Half the
drift counts as a standard deviation, of which a bound takes 8. Terms on the grid are not rounded, and not
counted; errors that equal terms have already are one error. Nor is the order random where equal terms follow
each other, as they do in memory: the largest s² is v² and Σ (k·t)² over runs of equal terms.
Products are looked at where all of a sum are equal, as those of operands with stride 0 are.

*Products* inside a sum may or may not be rounded (FMA), so they count as rounded. A sum of them that is
infinite is so for certain, unless a subnormal factor may be flushed, which makes Inf·0 of it.

*Products of many factors* are made in any order too. The largest partial product that some order has is that
of the factors above 1, the smallest that of those below. Where the largest overflows but the product does
not, there is no bound; where the smallest, s, is subnormal, it loses η/(2s) of itself, and so does the
product.

*Exactness.* If all terms are multiples of a quantum q and Σ|t| <= q·2^p, every partial sum in any order
is a multiple of q that p bits can hold: nothing is rounded, and the bound is 0. Σ|t| <= sqrt(n·Σt²).
The quantum must not be below η, the spacing of the subnormal numbers.

*Kept narrowly.* What a backend keeps from one step to the next may be an operand of a matrix product, in the
tensors' own type: a state of float16 is rounded once more, by u of that type, and may underflow or overflow.
The reference says where (``kept``).

*Underflow.* Each rounding may also lose half of η: + η²/12. Where subnormal results may be flushed to
zero it may lose the smallest normal number m instead: + m²/3.

*Overflow* of an intermediate result: what an elementary function makes larger than the format's largest
number may be infinite, a relative error of 1. So 1/(1 + exp(100)) may be 0. A sum may overflow half-way
and not come back: where |v| + 4·sqrt(Σt²) exceeds the largest number the error has no bound. Nor has
that of a multiple of it, by 0 neither: 0·Inf is NaN.

*Units.* The variance of a float64 near its underflow is no float64 any more. So an array keeps its squares
in a unit of its own, a power of two near its largest value; units of products multiply. Arrays whose units are
far apart take those of their largest values or errors, before one of them takes the other's.

*Common errors.* A mean subtracted from a row, or a constant such as 0.1, puts one error into many elements.
Independence would then be wrong where these elements are added up again: Σ dy·(x − mean) holds the mean's
error n times in one direction. So what is broadcast becomes a :class:`Common` error: to each element its
sensitivity, with sign, and the number of the error that it shares. Sensitivities to one error add up with
their signs: in a sum over elements that all share it, and when both operands of an operation have it. What
follows from this is exact to first order: Σ (x − mean)² does not feel the mean's error, as it should not.
In a sum over elements of which some share one error and some another, those of each add up with their signs,
and then as squares. Other results of several such elements have them in the variance as if independent.

What remains of correlation: an element that meets its own error again by two paths that are not common
(x·sigmoid(x), the maximum of a row and the row) counts it as two. By Cauchy and Schwarz the truth is at
most √2 as large, and √k by k paths; there is room for that within 8 standard deviations. The most is the
backward of a norm: 1/σ comes by three paths (itself, and in x̂ twice), so that the drift of Σ (x − mean)²,
at most 2 of its standard deviations, may be 2·√3 of those of dx, beside what else there is: 4.1 are
measured. A matrix product spreads the error of
an element of one operand over a row of results: ``fan`` remembers over how many, for the statistics of a
whole tensor (:mod:`dnncanon.conformance.verdict`).

*Discrete results.* A step function (sign, floor, rint) is exact where its argument's error does not reach
over a step, and otherwise may be off by the height of the step; so is a
remainder, whose step is the divisor. A comparison whose operands are so close that their errors may decide is
:class:`Undecided` there: what ``where`` chooses by it may be the other operand, so that its error reaches that
far, which at a kink is no further than the errors themselves. Argmax, and whole numbers to count with that
astype makes, are plain arrays: of a tie, the specification must say which results are right.

The bound itself is made in :mod:`dnncanon.conformance.bounds`.
"""

from dnncanon.conformance.accuracy import arithmetic, elementary, movement
from dnncanon.conformance.accuracy.array import (
    SIGMAS,
    Common,
    ErrorArray,
    Precision,
    UnsupportedByModel,
    quantum_of,
    unit_of,
)
from dnncanon.conformance.accuracy.undecided import Undecided

__all__ = [
    "SIGMAS",
    "Common",
    "ErrorArray",
    "Precision",
    "Undecided",
    "UnsupportedByModel",
    "arithmetic",
    "elementary",
    "movement",
    "quantum_of",
    "unit_of",
]
