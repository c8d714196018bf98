"""Sensors: how a model looks at an image. It gives a geometry and gets a patch.

All sensors, traces and boxes of tasks use one convention:

- A location is ``(x, y)``, x to the right and y down.
- -1 and 1 are the outer edges of the image, not the centres of its outermost pixels; this is what
  torch calls ``align_corners=False``. Pixel i of n has its centre at ``(2 i + 1) / n - 1``, and a
  length of one pixel is ``2 / n``. So a size in these units is the same share of any image.
- A window is ``(x, y, half_width, half_height)``: its centre and half of each side. The whole image
  is ``(0, 0, 1, 1)``, and the affine map from a window's own coordinates to the image's is
  ``[[half_width, 0, x], [0, half_height, y]]``.
- Outside the image every pixel is 0.
- An image is ``[batch, height, width]``, grey, 0 (paper) to 1 (ink).

`saccade.zoo.sensors.retina` has the conversions between pixels and locations.
"""
