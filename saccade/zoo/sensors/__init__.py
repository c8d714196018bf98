"""How a system looks at an image: it gives a geometry and gets a patch.

One convention holds for every sensor, every trace and every box of a task:

- A place is ``(x, y)``, x to the right and y down.
- -1 and 1 are the outer edges of the image, not the centres of its outermost pixels; this is what
  torch calls ``align_corners=False``. Pixel i of n has its centre at ``(2 i + 1) / n - 1``, and a
  length of one pixel is ``2 / n``. A size in these units so means the same share of any image.
- A window is ``(x, y, half_width, half_height)``: its centre, and how far it reaches from it. The
  whole image is ``(0, 0, 1, 1)``, and the affine map from a window's own coordinates to the image's
  is ``[[half_width, 0, x], [0, half_height, y]]``.
- What lies outside the image is empty: 0.
- An image is ``[batch, height, width]``, grey, 0 (paper) to 1 (ink).

`saccade.sensors.coordinates` turns pixels into places and back.
"""
