"""DRAW: a recurrent variational autoencoder that reads and writes images by attention.

Gregor et al., 2015, "DRAW: A Recurrent Neural Network For Image Generation"
(https://arxiv.org/abs/1502.04623).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from saccade.zoo.cells.cell import LearnedStart, weights_of
from saccade.zoo.cells.lstm import LstmCell
from saccade.zoo.objectives.variational import gaussian_kl
from saccade.zoo.sensors.gaussian_bank import GaussianGrid, GridPlace, gaussian_read, gaussian_write
from saccade.zoo.sensors.retina import check_images

# An eighth of MNIST's pixels are ink: log(1/8 / (7/8)). A canvas initialised to 0 would be grey.
PAPER = -1.95


class Drawn(NamedTuple):
    """A generated image, step by step."""

    canvases: tuple[Float[Tensor, "batch height width"], ...]
    """Log-odds of ink after each step; the last is the image."""
    kl: Float[Tensor, "batch step"]
    """KL of each step's latent, in nats; zero where it was sampled from the prior."""
    reads: tuple[GaussianGrid | None, ...]
    """Grid of each read; None without attention, or where nothing was read."""
    writes: tuple[GaussianGrid | None, ...]
    """Grid of each write; None without attention."""


class Read(NamedTuple):
    """The read of a step from the image and the error of the canvas."""

    seen: Float[Tensor, "batch d_seen"]
    """Without attention only the error: the image is constant."""
    grid: GaussianGrid | None


class Stroke(NamedTuple):
    """The write of a step."""

    ink: Float[Tensor, "batch height width"]
    grid: GaussianGrid | None


class Draw(nn.Module):
    """A variational autoencoder with a latent at each step and a canvas that adds up.

    Section 2, equations 3 to 8, with sigma the logistic function::

        error_t = x - sigma(canvas_(t-1))
        r_t     = read(x, error_t, dec_(t-1))
        enc_t   = LSTM(enc_(t-1), [r_t, dec_(t-1)])
        z_t     ~ N(mean(enc_t), sigma(enc_t))
        dec_t   = LSTM(dec_(t-1), z_t)
        canvas_t = canvas_(t-1) + write(dec_t)

    With attention (section 3.2) a read is a small patch seen through a Gaussian filter bank whose
    centre, stride and width the decoder chose, and so is a write. Without attention (section 3.1)
    the encoder sees all pixels and the decoder writes all of them. Initial canvas and states are
    learnt.

    Where we differ: the grids are initialised to the whole image for any state, and the canvas to
    nearly white; the paper does not specify either.

    >>> model = Draw(height=7, width=5, d_hidden=11, d_latent=3, n_steps=2)
    >>> drawn = model(torch.rand(2, 7, 5))
    >>> len(drawn.canvases), drawn.kl.shape
    (2, torch.Size([2, 2]))
    """

    def __init__(
        self,
        *,
        height: int = 28,
        width: int = 28,
        d_hidden: int = 256,
        d_latent: int = 100,
        n_steps: int = 64,
        read_size: int = 2,
        write_size: int = 5,
        has_attention: bool = True,
    ) -> None:
        super().__init__()
        self.height, self.width, self.n_steps = height, width, n_steps
        place = partial(GridPlace, d_hidden, height=height, width=width)
        self.read_place = place(size=read_size) if has_attention else None
        self.write_place = place(size=write_size) if has_attention else None
        n_read = read_size**2 if has_attention else height * width
        n_written = write_size**2 if has_attention else height * width
        self.encoder = LearnedStart(LstmCell(2 * n_read + d_hidden, d_hidden))
        self.decoder = LearnedStart(LstmCell(d_latent, d_hidden))
        self.latent = nn.Linear(d_hidden, 2 * d_latent)
        self.patch = nn.Linear(d_hidden, n_written)
        self.first_canvas = nn.Parameter(torch.full((height, width), PAPER))

    def forward(self, images: Float[Tensor, "batch height width"]) -> Drawn:
        """Reconstruct images from their latents."""
        check_images(images, size=(self.height, self.width))
        n = len(images)
        canvas = self.first_canvas.expand(n, -1, -1)
        enc, dec = self.encoder.start(n), self.decoder.start(n)
        project = self._projecting(images)
        canvases, means, log_sigmas, reads, writes = [], [], [], [], []
        for noise in torch.randn(self.n_steps, n, self.decoder.d_input).to(canvas):
            error = images - canvas.sigmoid()
            # Rows of both interleaved, the memory layout that `gaussian_read` uses.
            both = torch.stack([images, error], dim=2).transpose(1, 2)
            read = self._read(both, dec.hidden)
            gates = project(torch.cat([read.seen, dec.hidden], dim=1))
            enc = self.encoder.advance(gates, enc).state
            mean, log_sigma = self.latent(enc.hidden).chunk(2, dim=1)
            latent = mean + log_sigma.exp() * noise
            dec = self.decoder.step(latent, dec).state
            stroke = self._write(dec.hidden)
            canvas = canvas + stroke.ink
            canvases.append(canvas)
            means.append(mean)
            log_sigmas.append(log_sigma)
            reads.append(read.grid)
            writes.append(stroke.grid)
        kl = gaussian_kl(torch.stack(means, dim=1), torch.stack(log_sigmas, dim=1))
        return Drawn(tuple(canvases), kl, tuple(reads), tuple(writes))

    def sample(self, n: int) -> Drawn:
        """Generate new images: section 2.3, every latent is sampled from the prior, N(0, 1)."""
        canvas, dec = self.first_canvas.expand(n, -1, -1), self.decoder.start(n)
        canvases, writes = [], []
        for latent in torch.randn(self.n_steps, n, self.decoder.d_input).to(canvas):
            dec = self.decoder.step(latent, dec).state
            stroke = self._write(dec.hidden)
            canvas = canvas + stroke.ink
            canvases.append(canvas)
            writes.append(stroke.grid)
        nothing = (None,) * self.n_steps
        return Drawn(tuple(canvases), canvas.new_zeros(n, self.n_steps), nothing, tuple(writes))

    def _projecting(
        self, images: Float[Tensor, "batch height width"]
    ) -> Callable[[Tensor], Tensor]:
        """The input part of the encoder's gates: ``W_x [image, error, dec] + b``.

        Without attention the image is the same at every step, so its part is computed once.
        """
        if self.read_place is not None:
            return self.encoder.project
        cell, n = self.encoder.cell, self.height * self.width
        assert isinstance(cell, LstmCell), f"the encoder is an LSTM, not {type(cell).__name__}"
        own = weights_of(cell.kernel)
        bias = own.input_bias + own.state_bias
        of_image = functional.linear(images.flatten(1), own.of_input[:, :n], bias)
        of_others = own.of_input[:, n:].T
        return lambda seen: torch.addmm(of_image, seen, of_others)

    def _read(
        self,
        pictures: Float[Tensor, "batch 2 height width"],
        hidden: Float[Tensor, "batch d_hidden"],
    ) -> Read:
        """Equations 17 and 27."""
        if self.read_place is None:
            return Read(pictures[:, 1].flatten(1), None)
        grid = self.read_place(hidden)
        return Read(gaussian_read(pictures, self.read_place.bank(grid)).flatten(1), grid)

    def _write(self, hidden: Float[Tensor, "batch d_hidden"]) -> Stroke:
        """Equations 18 and 28, 29."""
        patch = self.patch(hidden)
        if self.write_place is None:
            return Stroke(patch.unflatten(1, (self.height, self.width)), None)
        grid, side = self.write_place(hidden), self.write_place.size
        ink = gaussian_write(patch.unflatten(1, (side, side)), self.write_place.bank(grid))
        return Stroke(ink, grid)
