// Drawing of the viewer's points in the browser: eye-dome lighting, limits of the point size, a clipping box, two linked
// views, the marker of the clicked point, and zooming to the point under the cursor. display.py sends this script and the settings; README.md explains the steps.
(() => {
  if (window.pointgradDisplay) return;
  window.pointgradDisplay = true;

  const SETTINGS = "/pointgrad"; // node whose text holds the settings as JSON
  const POINTS = 1; // layer of the points of the cloud; everything else is in layer 0
  const SOFTNESS = 20; // depth in pixels that gives the maximum darkening, as in pointgrad.render
  const FAR = 1e30;

  const VERTEX = `
    precision highp float;
    uniform float scale;
    uniform vec3 uniformColor;
    uniform vec2 limits;
    uniform vec3 low, high;
    varying vec3 vColor;
    varying float vSize;
    void main() {
      #ifdef USE_COLOR
        vColor = color;
      #else
        vColor = uniformColor;
      #endif
      vec4 place = modelViewMatrix * vec4(position, 1.0);
      gl_Position = projectionMatrix * place;
      vSize = clamp(scale / -place.z, limits.x, limits.y);
      gl_PointSize = vSize;
      if (any(lessThan(position, low)) || any(greaterThan(position, high))) gl_Position = vec4(2.0, 2.0, 2.0, 1.0);
    }`;
  const DISC = `
    varying vec3 vColor;
    varying float vSize;
    void main() {
      if (vSize > 2.0 && length(gl_PointCoord - 0.5) > 0.5) discard;
      gl_FragColor = vec4(vColor, 1.0);
    }`;
  // A ring with a dark and a light edge and an open center, so that it is visible on every color.
  const RING = `
    varying vec3 vColor;
    void main() {
      float radius = 2.0 * length(gl_PointCoord - 0.5);
      if (radius > 1.0 || (radius < 0.5 && radius > 0.16)) discard;
      bool edge = radius > 0.88 || (radius < 0.62 && radius > 0.16);
      gl_FragColor = vec4(edge ? (radius > 0.88 ? vec3(1.0) : vec3(0.1)) : vColor, 1.0);
    }`;
  const TRIANGLE = `#version 300 es
    void main() {
      gl_Position = vec4(float(gl_VertexID & 1) * 4.0 - 1.0, float(gl_VertexID >> 1) * 4.0 - 1.0, 0.0, 1.0);
    }`;
  // Darkens a pixel if the pixels around it, at distances of one and three pixels, are nearer: see render/canvas.py.
  const LIGHT = `#version 300 es
    precision highp float;
    precision highp sampler2D;
    uniform sampler2D colors, depths;
    uniform ivec2 corner, size;
    uniform vec2 projection;  // entries of the projection matrix from which depth is computed
    uniform float reversed, focal, ratio, far;
    out vec4 color;
    float depth(ivec2 pixel) {
      float z = texelFetch(depths, clamp(pixel, ivec2(0), size - 1), 0).r;
      if (z == far) return ${FAR.toExponential()};
      return projection.y / ((reversed > 0.5 ? z : 2.0 * z - 1.0) + projection.x);
    }
    float darkness(ivec2 pixel, float here, float distance, float soft) {
      int step = max(1, int(round(distance * ratio)));
      float sum = 0.0;
      for (int y = -1; y <= 1; y++)
        for (int x = -1; x <= 1; x++)
          if (x != 0 || y != 0) sum += clamp((here - depth(pixel + step * ivec2(x, y))) / soft, 0.0, 1.0);
      return min(sum / 4.0, 1.0);
    }
    void main() {
      ivec2 pixel = ivec2(gl_FragCoord.xy) - corner;
      float here = depth(pixel);
      if (here >= 1e29) discard;
      float soft = ${SOFTNESS.toFixed(1)} * here / focal;
      float light = 1.0 - 0.45 * darkness(pixel, here, 1.0, soft);
      light *= 1.0 - 0.35 * darkness(pixel, here, 3.0, soft);
      color = vec4(texelFetch(colors, pixel, 0).rgb * light, 1.0);
      gl_FragDepth = texelFetch(depths, pixel, 0).r;
    }`;

  const shared = {
    limits: { value: [1, 1024] },
    low: { value: [-1e30, -1e30, -1e30] },
    high: { value: [1e30, 1e30, 1e30] },
    anywhere: { low: { value: [-1e30, -1e30, -1e30] }, high: { value: [1e30, 1e30, 1e30] } },
  };
  const settings = { text: "", shading: true, titles: [], clip: null, limits: [1, 1024] };
  const viewer = () => window.__viserMutable;
  let renderer, plain, light, overlay;

  // -- settings --------------------------------------------------------------------------------------------------

  function readSettings() {
    const node = window.__viserSceneTree.getState()[SETTINGS];
    const text = node && node.message.props.text;
    if (!text || text === settings.text) return;
    Object.assign(settings, JSON.parse(text), { text });
    [shared.low.value, shared.high.value] = settings.clip || [shared.anywhere.low.value, shared.anywhere.high.value];
  }

  // -- materials -------------------------------------------------------------------------------------------------

  // Replace the shaders of new points; return the points of the cloud and of its copy.
  function preparePoints() {
    const found = { cloud: [], copy: [] };
    for (const [name, node] of Object.entries(viewer().nodeRefFromName)) {
      const family = name.split("/")[1];
      if (!node || !["cloud", "copy", "overlay", "marker"].includes(family)) continue;
      node.traverse((object) => {
        if (!object.isPoints || !object.material.uniforms || !object.material.uniforms.point_ball_norm) return;
        const { material } = object;
        if (!material.userData.pointgrad) prepare(material, family);
        if (!(family in found)) return;
        found[family].push(object);
        object.layers.set(POINTS);
      });
    }
    return found;
  }

  function prepare(material, family) {
    material.userData.pointgrad = true;
    const marker = family === "marker", drawing = family === "overlay";
    material.vertexShader = VERTEX;
    material.fragmentShader = marker ? RING : DISC;
    const { low, high } = marker || drawing ? shared.anywhere : shared;
    const limits = marker ? markerLimits : shared.limits;
    Object.assign(material.uniforms, { limits, low, high });
    material.depthTest = !marker;
    material.depthWrite = !marker;
    material.transparent = marker; // drawn last
    material.fog = false;
    material.needsUpdate = true;
  }
  const MARKER_PIXELS = 22;
  const markerLimits = { value: [MARKER_PIXELS, MARKER_PIXELS] };

  // -- panes -----------------------------------------------------------------------------------------------------

  // Rectangles in CSS pixels, from the lower left corner. Two titles: two panes along the longer side.
  function panes(width, height) {
    if (settings.titles.length < 2) return [{ x: 0, y: 0, width, height, hidden: "copy" }];
    if (width >= height) {
      const half = Math.floor(width / 2);
      return [
        { x: 0, y: 0, width: half, height, hidden: "copy" },
        { x: width - half, y: 0, width: half, height, hidden: "cloud" },
      ];
    }
    const half = Math.floor(height / 2);
    return [
      { x: 0, y: height - half, width, height: half, hidden: "copy" },
      { x: 0, y: 0, width, height: half, hidden: "cloud" },
    ];
  }

  function showTitles(places, width, height) {
    const parent = renderer.domElement.parentElement;
    if (!overlay || overlay.parentElement !== parent) {
      overlay = document.createElement("div");
      overlay.style.cssText = "position:absolute;inset:0;pointer-events:none;z-index:1";
      overlay.className = "pointgrad-titles";
      parent.appendChild(overlay);
    }
    const key = JSON.stringify([settings.titles, width, height]);
    if (overlay.dataset.key === key) return;
    overlay.dataset.key = key;
    overlay.replaceChildren();
    if (places.length < 2) return;
    places.forEach((place, number) => {
      const title = document.createElement("div");
      title.textContent = settings.titles[number];
      title.style.cssText =
        "position:absolute;padding:.15em .8em;border-radius:.4em;background:rgba(255,255,255,.88);color:#222;" +
        "font:600 14px system-ui,sans-serif;transform:translateX(-50%);white-space:nowrap;" +
        `left:${place.x + place.width / 2}px;top:${height - place.y - place.height + 10}px`;
      overlay.appendChild(title);
    });
    const line = document.createElement("div");
    const split = places[0].x === places[1].x ? `top:50%;left:0;right:0;height:2px` : `left:50%;top:0;bottom:0;width:2px`;
    line.style.cssText = `position:absolute;${split};margin:-1px;background:rgba(128,128,128,.7)`;
    overlay.appendChild(line);
  }

  // -- drawing ---------------------------------------------------------------------------------------------------

  function draw(scene, camera) {
    if (scene !== viewer().scene || renderer.getRenderTarget() !== null) return plain(scene, camera);
    try {
      drawPanes(scene, camera);
    } catch (error) {
      console.error(`pointgrad: points are drawn by viser: ${error.message}`);
      renderer.render = plain;
      plain(scene, camera);
    }
  }

  function drawPanes(scene, camera) {
    readSettings();
    const found = preparePoints();
    const ratio = renderer.getPixelRatio();
    const size = { set(x, y) { this.width = x; this.height = y; return this; } };
    renderer.getSize(size);
    const places = panes(size.width, size.height);
    if (camera === viewer().camera) showTitles(places, size.width, size.height);
    shared.limits.value = settings.limits.map((limit) => limit * ratio);
    markerLimits.value = [MARKER_PIXELS * ratio, MARKER_PIXELS * ratio];
    const before = { aspect: camera.aspect, mask: camera.layers.mask, clear: renderer.autoClear };
    try {
      renderer.setViewport(0, 0, size.width, size.height);
      renderer.clear();
      for (const place of places) drawPane(scene, camera, place, found, ratio);
    } finally {
      camera.aspect = before.aspect;
      camera.layers.mask = before.mask;
      renderer.autoClear = before.clear;
      camera.updateProjectionMatrix();
      renderer.setViewport(0, 0, size.width, size.height);
      for (const object of [...found.cloud, ...found.copy]) object.visible = true;
    }
  }

  function drawPane(scene, camera, place, found, ratio) {
    for (const object of found.cloud) object.visible = place.hidden !== "cloud";
    for (const object of found.copy) object.visible = place.hidden !== "copy";
    camera.aspect = place.width / place.height;
    camera.updateProjectionMatrix();
    if (settings.shading && light) {
      camera.layers.mask = 1 << POINTS;
      renderer.autoClear = true;
      renderer.setViewport(0, 0, place.width, place.height);
      light.capture(() => plain(scene, camera));
      light.shade(camera, place, ratio);
      camera.layers.mask = 1;
    } else {
      camera.layers.mask = 1 | (1 << POINTS);
    }
    renderer.autoClear = false;
    renderer.setViewport(place.x, place.y, place.width, place.height);
    plain(scene, camera);
  }

  // A texture with the colors and one with the depths of the points, and a program that shades them into the canvas.
  function makeLight() {
    const gl = renderer.getContext();
    const bind = gl.bindFramebuffer.bind(gl);
    let target = null; // replaces the canvas while points are captured
    gl.bindFramebuffer = (kind, framebuffer) => bind(kind, framebuffer === null ? target : framebuffer);
    const program = gl.createProgram();
    for (const [kind, source] of [[gl.VERTEX_SHADER, TRIANGLE], [gl.FRAGMENT_SHADER, LIGHT]]) {
      const shader = gl.createShader(kind);
      gl.shaderSource(shader, source);
      gl.compileShader(shader);
      gl.attachShader(program, shader);
    }
    gl.linkProgram(program);
    if (!gl.getProgramParameter(program, gl.LINK_STATUS)) throw new Error(gl.getProgramInfoLog(program));
    const uniforms = {};
    for (const name of ["colors", "depths", "corner", "size", "projection", "reversed", "focal", "ratio", "far"])
      uniforms[name] = gl.getUniformLocation(program, name);
    const [framebuffer, color, depth, vertices] = [
      gl.createFramebuffer(), gl.createTexture(), gl.createTexture(), gl.createVertexArray(),
    ];
    let width = 0, height = 0;

    function resize() {
      if (width === gl.drawingBufferWidth && height === gl.drawingBufferHeight) return;
      [width, height] = [gl.drawingBufferWidth, gl.drawingBufferHeight];
      const old = gl.getParameter(gl.TEXTURE_BINDING_2D);
      const formats = [
        [color, gl.RGBA8, gl.RGBA, gl.UNSIGNED_BYTE, gl.COLOR_ATTACHMENT0],
        [depth, gl.DEPTH_COMPONENT32F, gl.DEPTH_COMPONENT, gl.FLOAT, gl.DEPTH_ATTACHMENT],
      ];
      bind(gl.FRAMEBUFFER, framebuffer);
      for (const [texture, internal, format, type, attachment] of formats) {
        gl.bindTexture(gl.TEXTURE_2D, texture);
        gl.texImage2D(gl.TEXTURE_2D, 0, internal, width, height, 0, format, type, null);
        gl.texParameteri(gl.TEXTURE_2D, gl.TEXTURE_MIN_FILTER, gl.NEAREST);
        gl.texParameteri(gl.TEXTURE_2D, gl.TEXTURE_MAG_FILTER, gl.NEAREST);
        gl.framebufferTexture2D(gl.FRAMEBUFFER, attachment, gl.TEXTURE_2D, texture, 0);
      }
      gl.bindTexture(gl.TEXTURE_2D, old);
      bind(gl.FRAMEBUFFER, null);
    }

    function capture(drawPoints) {
      resize();
      target = framebuffer;
      bind(gl.FRAMEBUFFER, framebuffer);
      try {
        drawPoints();
      } finally {
        target = null;
        bind(gl.FRAMEBUFFER, null);
      }
    }

    // three.js caches the state of the context: everything that changes here is set back.
    function shade(camera, place, ratio) {
      const get = (name) => gl.getParameter(name);
      const old = {
        program: get(gl.CURRENT_PROGRAM), vertices: get(gl.VERTEX_ARRAY_BINDING), unit: get(gl.ACTIVE_TEXTURE),
        viewport: get(gl.VIEWPORT), compare: get(gl.DEPTH_FUNC), write: get(gl.DEPTH_WRITEMASK),
        mask: get(gl.COLOR_WRITEMASK), textures: [], samplers: [],
        flags: [gl.BLEND, gl.CULL_FACE, gl.SCISSOR_TEST, gl.STENCIL_TEST, gl.POLYGON_OFFSET_FILL, gl.DEPTH_TEST].map(
          (flag) => [flag, gl.isEnabled(flag)],
        ),
      };
      const set = (flag, on) => (on ? gl.enable(flag) : gl.disable(flag));
      [color, depth].forEach((texture, unit) => {
        gl.activeTexture(gl.TEXTURE0 + unit);
        old.textures.push(get(gl.TEXTURE_BINDING_2D));
        gl.bindTexture(gl.TEXTURE_2D, texture);
      });
      for (const [flag] of old.flags) set(flag, flag === gl.DEPTH_TEST);
      gl.depthFunc(gl.ALWAYS);
      gl.depthMask(true);
      gl.colorMask(true, true, true, true);
      const pixels = [place.x, place.y, place.width, place.height].map((each) => Math.round(each * ratio));
      gl.viewport(...pixels);
      gl.useProgram(program);
      gl.bindVertexArray(vertices);
      const matrix = camera.projectionMatrix.elements;
      const reversed = Boolean(camera.reversedDepth);
      gl.uniform1i(uniforms.colors, 0);
      gl.uniform1i(uniforms.depths, 1);
      gl.uniform2i(uniforms.corner, pixels[0], pixels[1]);
      gl.uniform2i(uniforms.size, pixels[2], pixels[3]);
      gl.uniform2f(uniforms.projection, matrix[10], matrix[14]);
      gl.uniform1f(uniforms.reversed, reversed ? 1 : 0);
      gl.uniform1f(uniforms.far, reversed ? 0 : 1);
      gl.uniform1f(uniforms.focal, (matrix[5] * place.height) / 2);
      gl.uniform1f(uniforms.ratio, ratio);
      gl.drawArrays(gl.TRIANGLES, 0, 3);
      gl.useProgram(old.program);
      gl.bindVertexArray(old.vertices);
      old.textures.forEach((texture, unit) => {
        gl.activeTexture(gl.TEXTURE0 + unit);
        gl.bindTexture(gl.TEXTURE_2D, texture);
      });
      gl.activeTexture(old.unit);
      for (const [flag, on] of old.flags) set(flag, on);
      gl.depthFunc(old.compare);
      gl.depthMask(old.write);
      gl.colorMask(...old.mask);
      gl.viewport(...old.viewport);
    }

    return { capture, shade };
  }

  // On phones, the controls are a sheet over the lower part of the window: draw above it. See page.py for the selector.
  function fitAboveSheet() {
    const area = renderer.domElement.closest('[style*="z-index: 0"]');
    if (!area) return;
    const sheet = document.querySelector('[style*="position: fixed"][style*="max-height: 60%"]');
    const height = sheet ? `calc(100% - ${Math.round(sheet.getBoundingClientRect().height)}px)` : "100%";
    if (area.style.height !== height) area.style.height = height;
  }

  // -- zoom ------------------------------------------------------------------------------------------------------

  // viser zooms to the point that the camera turns around, which may be behind the surface in the middle of the picture:
  // the camera would pass through it, and nothing would be left to see. Here, the wheel zooms to the point under the
  // cursor, or nearest to it, and a gesture with two fingers first moves the target to the depth of the point there.
  const REACH = 8; // pixels between the cursor and a point under it
  const ZOOM_SPEED = 0.0015; // per pixel of the wheel
  const LINE = 33, PAGE = 400; // pixels of a step of the wheel, if it is not given in pixels
  const [NEAREST, FARTHEST] = [0.02, 500]; // distances of the camera between which it zooms; browsers draw 0.01 to 1000
  const GESTURE = 400; // milliseconds between two events of one gesture
  const zoom = { x: 0, y: 0, time: 0, point: null };

  // The ray through a place in the window: slopes to the right and up, relative to the depth.
  function rayAt(x, y) {
    const box = renderer.domElement.getBoundingClientRect();
    const [left, bottom] = [x - box.left, box.bottom - y];
    const place = panes(box.width, box.height).find(
      (each) => left >= each.x && left <= each.x + each.width && bottom >= each.y && bottom <= each.y + each.height,
    );
    if (!place) return null;
    const slope = Math.tan((viewer().camera.fov * Math.PI) / 360); // of the upper edge
    const across = (2 * (left - place.x)) / place.width - 1, up = (2 * (bottom - place.y)) / place.height - 1;
    const reach = (2 * REACH * slope) / place.height;
    return { across: (across * slope * place.width) / place.height, up: up * slope, reach };
  }

  // The front point under the cursor, else the point of the cloud that is nearest to it in the picture, so that the
  // cloud never leaves the picture; null if no point is in front of the camera. Coordinates relative to the camera.
  function nearestAt(ray) {
    const { camera } = viewer();
    camera.updateMatrixWorld();
    const [low, high] = settings.clip || [shared.anywhere.low.value, shared.anywhere.high.value];
    let nearest = null, best = Infinity; // slope between the ray and the point; those within reach are ordered by depth
    for (const object of preparePoints().cloud) {
      const e = object.matrixWorld.clone().premultiply(camera.matrixWorldInverse).elements;
      const { array } = object.geometry.attributes.position;
      for (let i = 0; i < array.length; i += 3) {
        const x = array[i], y = array[i + 1], z = array[i + 2];
        const depth = -(e[2] * x + e[6] * y + e[10] * z + e[14]);
        if (depth <= 0) continue;
        const right = e[0] * x + e[4] * y + e[8] * z + e[12], above = e[1] * x + e[5] * y + e[9] * z + e[13];
        const slope = Math.max(ray.reach, Math.hypot(right / depth - ray.across, above / depth - ray.up));
        if (slope > best || (slope === best && depth >= nearest[2])) continue;
        if (x < low[0] || y < low[1] || z < low[2] || x > high[0] || y > high[1] || z > high[2]) continue;
        [best, nearest] = [slope, [right, above, depth]];
      }
    }
    return nearest;
  }

  // Where the camera is going, and the direction in which it looks.
  function pose() {
    const controls = viewer().cameraControl;
    const position = controls.getPosition(viewer().camera.position.clone(), true);
    const target = controls.getTarget(position.clone(), true);
    return { controls, position, forward: target.clone().sub(position).normalize() };
  }

  function look({ controls, position, forward }, depth, smooth) {
    const target = position.clone().addScaledVector(forward, depth);
    controls.setLookAt(...position.toArray(), ...target.toArray(), smooth);
  }

  function zoomWheel(event) {
    if (!renderer.domElement.parentElement.contains(event.target) || !viewer().cameraControl) return;
    event.preventDefault();
    event.stopImmediatePropagation();
    const camera = pose(), time = performance.now(), [x, y] = [event.clientX, event.clientY];
    const same = Math.hypot(x - zoom.x, y - zoom.y) < 2 && time - zoom.time < GESTURE;
    Object.assign(zoom, { x, y, time, point: same ? zoom.point : pointAt(x, y) });
    if (!zoom.point) return;
    const step = event.deltaY * ([1, LINE, PAGE][event.deltaMode] || 1) * (event.ctrlKey ? 5 : 1); // Ctrl: a touchpad
    const factor = Math.exp(ZOOM_SPEED * Math.max(-PAGE, Math.min(PAGE, step)));
    const away = camera.position.clone().sub(zoom.point);
    if (factor < 1 ? away.length() < NEAREST : away.length() > FARTHEST) return;
    camera.position.copy(zoom.point).addScaledVector(away, factor);
    look(camera, zoom.point.clone().sub(camera.position).dot(camera.forward), true);
  }

  function pointAt(x, y) {
    const ray = rayAt(x, y), nearest = ray && nearestAt(ray);
    if (!nearest) return null;
    const { camera } = viewer();
    return camera.position.clone().set(nearest[0], nearest[1], -nearest[2]).applyMatrix4(camera.matrixWorld);
  }

  function pinch(event) {
    if (event.touches.length !== 2 || !renderer.domElement.parentElement.contains(event.target)) return;
    if (!viewer().cameraControl) return;
    const [one, two] = event.touches;
    const ray = rayAt((one.clientX + two.clientX) / 2, (one.clientY + two.clientY) / 2);
    const nearest = ray && nearestAt(ray);
    if (nearest) look(pose(), nearest[2], false);
  }

  // -- installation ----------------------------------------------------------------------------------------------

  function prepareLight() {
    light = null;
    try {
      light = makeLight();
    } catch (error) {
      console.error(`pointgrad: no shading: ${error.message}`);
    }
  }

  function install(found) {
    renderer = found;
    plain = renderer.render.bind(renderer);
    prepareLight();
    renderer.domElement.addEventListener("webglcontextrestored", prepareLight);
    renderer.render = draw;
    window.addEventListener("wheel", zoomWheel, { capture: true, passive: false });
    window.addEventListener("touchstart", pinch, { capture: true, passive: true });
    setInterval(fitAboveSheet, 250);
    viewer().requestRender();
  }

  const waiting = setInterval(() => {
    const { scene } = viewer() || {};
    if (!scene) return;
    clearInterval(waiting);
    const before = scene.onBeforeRender;
    scene.onBeforeRender = (found, ...rest) => {
      scene.onBeforeRender = before;
      before(found, ...rest);
      install(found);
    };
    viewer().requestRender();
  }, 50);
})();
