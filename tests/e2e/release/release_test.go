//go:build e2e

package release

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

const version = "v0.9.9"

type site struct {
	dir, out, image string
}

func TestRelease(t *testing.T) {
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	registry := l.Addr().String()
	must.Do(t, l.Close())
	dir := suite.Folder(t, "release")
	s := &site{dir: dir, out: filepath.Join(dir, "dist"), image: registry + "/platform/fairlead"}
	s.make(t, "release", "OUT="+s.out)
	c := suite.Start(t, cluster.Config{Dir: filepath.Join(dir, "cluster")})
	t.Run("twice", s.twice)
	t.Run("named by digest", s.named)
	t.Run("deb", func(t *testing.T) { s.deb(t, c) })
	t.Run("man", s.man)
	t.Run("image", func(t *testing.T) { s.layers(t, c) })
	s.keys(t)
	t.Run("signed", s.signed)
	t.Run("push", func(t *testing.T) { s.push(t, registry) })
}

func (s *site) make(t *testing.T, args ...string) {
	t.Helper()
	s.run(t, "make", append([]string{"-C", "../../..", "VERSION=" + version, "RELEASE_TARGETS=linux/" + runtime.GOARCH, "RELEASE_IMAGE=" + s.image}, args...)...)
}

func (s *site) run(t *testing.T, name string, args ...string) string {
	t.Helper()
	a := suite.Run(t, exec.CommandContext(t.Context(), name, args...), "")
	must.Be(t, a.Code == 0, "%s %q: exit code %d\n%s%s", name, args, a.Code, a.Out, a.Errs)
	return a.Out
}

func (s *site) file(t *testing.T, pattern string) string {
	t.Helper()
	found := must.Get(filepath.Glob(filepath.Join(s.out, pattern)))(t)
	must.Be(t, len(found) == 1, "%s: %q", pattern, found)
	return found[0]
}

// twice makes the release again, elsewhere, later, and by someone whose group may write, and who compiles for a newer
// processor. `make reproducible` compares programs built elsewhere.
func (s *site) twice(t *testing.T) {
	t.Setenv("GOAMD64", "v2")
	t.Setenv("GOARM64", "v8.1")
	defer syscall.Umask(syscall.Umask(0o002))
	again := filepath.Join(t.TempDir(), "dist")
	s.make(t, "release", "OUT="+again)
	check.Same(t, "", s.run(t, "diff", "-r", s.out, again), "what differs")
	s.run(t, "sh", "-c", "cd "+again+" && sha256sum --check --quiet SHA256SUMS")
	sums := must.Get(os.ReadFile(filepath.Join(again, "SHA256SUMS")))(t)
	check.Same(t, true, strings.Count(string(sums), "\n") >= 11, "at least 11 files:\n%s", sums)
}

// named requires that every manifest names the image that was made, and no other.
func (s *site) named(t *testing.T) {
	digest := must.Get(os.ReadFile(s.file(t, "image.digest")))(t)
	dir := t.TempDir()
	s.run(t, "tar", "-xzf", s.file(t, "fairlead-manifests_*"), "-C", dir)
	want := "image: " + strings.TrimSpace(string(digest)) + "\n"
	// Of a commit without a tag it may be a number, such as 1234567 or 12345e6, which is no text unless it is quoted.
	check.Has(t, s.run(t, "tar", "-xzOf", s.file(t, "fairlead-*.tgz"), "fairlead/Chart.yaml"), "\nappVersion: \""+version+"\"\n")
	for _, overlay := range []string{"control-plane", "load-balancer"} {
		out := s.run(t, suite.Tool(t, "kubectl"), "kustomize", filepath.Join(dir, "overlays", overlay))
		check.Same(t, true, strings.Count(out, "image: ") == 1 && strings.Contains(out, want), "%s does not name %s", overlay, want)
	}
	check.Has(t, string(must.Get(os.ReadFile(filepath.Join(dir, "static-pod", "fairlead.yaml")))(t)), want)
}

// deb installs the package into a folder and starts its unit as systemd would.
func (s *site) deb(t *testing.T, c *cluster.Cluster) {
	root := t.TempDir()
	for _, dir := range []string{"info", "updates", "triggers"} {
		must.Do(t, os.MkdirAll(filepath.Join(root, "var/lib/dpkg", dir), 0o755))
	}
	must.Do(t, os.WriteFile(filepath.Join(root, "var/lib/dpkg/status"), nil, 0o600))
	dpkg := []string{"--root=" + root, "--force-script-chrootless", "--log=/dev/null"}
	s.run(t, "dpkg", append(dpkg, "--install", s.file(t, "*.deb"))...)
	licences(t, root)
	unit := filepath.Join(root, "usr/lib/systemd/system/fairlead.service")
	check.Same(t, "", s.run(t, "systemd-analyze", "verify", "--root="+root, "--man=no", "--recursive-errors=no", unit), "what systemd-analyze reports")
	text := must.Get(os.ReadFile(unit))(t)
	_, rest, _ := strings.Cut(string(text), "\nExecStart=")
	line, _, _ := strings.Cut(strings.ReplaceAll(rest, "\\\n", " "), "\n")
	must.Do(t, os.WriteFile(filepath.Join(root, "etc/default/fairlead"), []byte(`FAIRLEAD_FLAGS="--bind-address=127.0.0.1 --secure-port=0 --admin-secure-port=0 --shutdown-delay-duration=0"`), 0o600))
	flags := s.run(t, "sh", "-c", ". "+root+"/etc/default/fairlead; echo $FAIRLEAD_FLAGS")
	s.start(t, c, root, strings.Fields(strings.ReplaceAll(line, "$FAIRLEAD_FLAGS", flags)), 0)
	s.run(t, "dpkg", append(dpkg, "--remove", "fairlead")...)
	check.Has(t, s.run(t, "dpkg-deb", "--info", s.file(t, "*.deb"), "postrm"), "remove | 0) systemctl daemon-reload || true")
	check.Has(t, s.run(t, "dpkg-deb", "--info", s.file(t, "*.deb"), "prerm"), "fairlead-kubeconfig.timer || true")
	check.Has(t, s.run(t, "dpkg-deb", "--info", s.file(t, "*.deb"), "postinst"), "systemctl daemon-reload || true", "try-restart fairlead.service || true")
	_, err := os.Stat(filepath.Join(root, "usr/bin/fairlead"))
	check.Same(t, true, errors.Is(err, os.ErrNotExist), "the program is still there after its removal: %v", err)
	check.Has(t, string(must.Get(os.ReadFile(filepath.Join(root, "etc/default/fairlead")))(t)), "127.0.0.1") // the operator's flags
}

// start runs a program in a folder that is its root directory, with a node's keys, until it reports
// readiness, and stops it.
func (s *site) start(t *testing.T, c *cluster.Cluster, root string, line []string, uid uint32) {
	t.Helper()
	serving := must.Get(c.PKI.Serving.Issue("node", cluster.Leaf{User: "node", Names: []string{"localhost"}}))(t)
	for name, from := range map[string]string{
		"pki/apiserver.crt": serving.CertFile, "pki/apiserver.key": serving.KeyFile, "pki/ca.crt": c.PKI.Client.CertFile, "pki/front-proxy-ca.crt": c.PKI.FrontProxy.CertFile,
		"pki/front-proxy-client.crt": c.PKI.FrontProxyPair.CertFile, "pki/front-proxy-client.key": c.PKI.FrontProxyPair.KeyFile,
		"serving-ca.crt": c.PKI.Serving.CertFile, "admin.crt": c.PKI.Admin.CertFile, "admin.key": c.PKI.Admin.KeyFile,
	} {
		to := filepath.Join(root, "etc/kubernetes", name)
		must.Do(t, os.MkdirAll(filepath.Dir(to), 0o755))
		data := must.Get(os.ReadFile(from))(t)
		must.Do(t, os.WriteFile(to, data, 0o600))
		must.Do(t, os.Chown(to, int(uid), int(uid)))
	}
	kubeconfig := filepath.Join(root, "etc/kubernetes/fairlead.conf")
	must.Do(t, cluster.Endpoint{URL: c.Endpoint().URL, CAFile: "/etc/kubernetes/serving-ca.crt"}.WriteKubeconfig(kubeconfig,
		cluster.Credentials{Pair: cluster.Pair{CertFile: "/etc/kubernetes/admin.crt", KeyFile: "/etc/kubernetes/admin.key"}}))
	must.Do(t, os.Chown(kubeconfig, int(uid), int(uid)))

	socket := must.Get(net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(root, "notify"), Net: "unixgram"}))(t)
	defer socket.Close()
	must.Do(t, os.Chmod(filepath.Join(root, "notify"), 0o777))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, line[0], line[1:]...)
	cmd.Dir, cmd.Env, cmd.SysProcAttr = "/", []string{"NOTIFY_SOCKET=/notify"}, &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	cmd.Path, cmd.Err = line[0], nil
	log := must.Get(os.Create(filepath.Join(s.dir, filepath.Base(root)+".log")))(t)
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	must.Do(t, cmd.Start())
	notified := func(want string) {
		t.Helper()
		b := make([]byte, 256)
		must.Do(t, socket.SetReadDeadline(time.Now().Add(time.Minute)))
		n, err := socket.Read(b)
		if text, _ := os.ReadFile(log.Name()); err != nil || string(b[:n]) != want {
			_ = cmd.Process.Kill()
			t.Fatalf("it reported %q, want %s (%v)\n%s", b[:n], want, err, text)
		}
	}
	notified("READY=1")
	must.Do(t, cmd.Process.Signal(syscall.SIGTERM))
	notified("STOPPING=1")
	must.Do(t, cmd.Wait())
}

// licences requires the licences and notices of linked modules beside the programs.
func licences(t *testing.T, root string) {
	t.Helper()
	text := must.Get(os.ReadFile(filepath.Join(root, "usr/share/doc/fairlead/THIRD-PARTY-LICENSES")))(t)
	check.Has(t, string(text), "\ngolang.org/x/net@", "Redistributions in binary form must reproduce", "\nk8s.io/apimachinery@", "\ngoogle.golang.org/grpc@v", " NOTICE.txt\n")
}

// man requires that groff accepts the pages without a warning.
func (s *site) man(t *testing.T) {
	for _, program := range []string{"fairlead", "kubectl-fairlead"} {
		a := suite.Run(t, exec.CommandContext(t.Context(), "sh", "-c", "gzip -dc "+s.out+"/share/man/"+program+".8.gz | groff -Kutf8 -man -Tutf8 -ww"), "")
		if a.Code != 0 || a.Errs != "" || !strings.Contains(a.Out, "Exit code 0") && program == "kubectl-fairlead" {
			t.Errorf("%s: exit code %d\n%s", program, a.Code, a.Errs)
		}
		for _, help := range []string{"Show the busiest callers", "Move APIServices behind", "Undo adopt"} {
			check.Same(t, true, strings.Contains(a.Out, help) || program != "kubectl-fairlead", "no command whose help says %q", help)
		}
	}
}

// layers unpacks the image and runs it with nothing but its content, as its user.
func (s *site) layers(t *testing.T, c *cluster.Cluster) {
	blob := func(digest string, into any) {
		t.Helper()
		data := must.Get(os.ReadFile(filepath.Join(s.out, "image/blobs/sha256", strings.TrimPrefix(digest, "sha256:"))))(t)
		must.Do(t, json.Unmarshal(data, into))
	}
	type descriptor struct {
		Digest      string
		Platform    struct{ OS, Architecture string }
		Annotations map[string]string
	}
	var top, index struct{ Manifests []descriptor }
	data := must.Get(os.ReadFile(filepath.Join(s.out, "image/index.json")))(t)
	must.Do(t, json.Unmarshal(data, &top))
	check.Same(t, s.image+"@"+top.Manifests[0].Digest, top.Manifests[0].Annotations["io.containerd.image.name"], "containerd's name for the image")
	blob(top.Manifests[0].Digest, &index)
	var manifest struct {
		Config descriptor
		Layers []descriptor
	}
	p := index.Manifests[0].Platform
	check.Same(t, "linux "+runtime.GOARCH, p.OS+" "+p.Architecture, "what the image is for")
	blob(index.Manifests[0].Digest, &manifest)
	var config struct {
		Config struct {
			User            string
			Entrypoint, Cmd []string
		}
	}
	blob(manifest.Config.Digest, &config)
	root := t.TempDir()
	for _, l := range manifest.Layers {
		s.run(t, "tar", "-xzf", filepath.Join(s.out, "image/blobs/sha256", strings.TrimPrefix(l.Digest, "sha256:")), "-C", root)
	}
	must.Do(t, os.Chmod(root, 0o755))
	for _, program := range []string{"fairlead", "kubectl-fairlead"} {
		check.Has(t, s.run(t, "chroot", "--userspec="+config.Config.User, root, "/usr/local/bin/"+program, "version"), version)
	}
	licences(t, root)
	roots := strings.Count(string(must.Get(os.ReadFile(filepath.Join(root, "etc/ssl/certs/ca-certificates.crt")))(t)), "BEGIN CERTIFICATE")
	check.Same(t, true, roots >= 100, "%d CA roots, at least 100", roots)
	s.start(t, c, root, append(append(config.Config.Entrypoint, config.Config.Cmd...), strings.Fields(`--kubeconfig=/etc/kubernetes/fairlead.conf --bind-address=127.0.0.1 --secure-port=0 --admin-secure-port=0
		--tls-cert-file=/etc/kubernetes/pki/apiserver.crt --tls-private-key-file=/etc/kubernetes/pki/apiserver.key --client-ca-file=/etc/kubernetes/pki/ca.crt
		--proxy-client-cert-file=/etc/kubernetes/pki/front-proxy-client.crt --proxy-client-key-file=/etc/kubernetes/pki/front-proxy-client.key`)...), 65532)
}

// keys makes two throw-away keys, and has make sign and make push use the first.
func (s *site) keys(t *testing.T) {
	t.Setenv("COSIGN_PASSWORD", "throw-away")
	for _, name := range []string{"keys", "keys-other"} {
		dir := filepath.Join(s.dir, name)
		must.Do(t, os.Mkdir(dir, 0o700))
		s.run(t, "sh", "-c", "cd "+dir+" && "+suite.Tool(t, "cosign")+" generate-key-pair")
	}
	t.Setenv("COSIGN_PRIVATE_KEY", string(must.Get(os.ReadFile(filepath.Join(s.dir, "keys/cosign.key")))(t)))
}

// signed signs the release, and verifies each file as a user would. A changed byte and another key are refused.
func (s *site) signed(t *testing.T) {
	cosign, keys := suite.Tool(t, "cosign"), filepath.Join(s.dir, "keys")
	s.make(t, "sign", "OUT="+s.out)
	verify := func(dir, what, bundle, file string) suite.Answer {
		args := []string{what, "--key", filepath.Join(dir, "cosign.pub"), "--insecure-ignore-tlog", "--bundle", filepath.Join(s.out, bundle)}
		if what == "verify-blob-attestation" {
			args = append(args, "--type", "slsaprovenance1")
		}
		return suite.Run(t, exec.CommandContext(t.Context(), cosign, append(args, file)...), "")
	}
	const attested, provenance, sums = "verify-blob-attestation", "provenance.sigstore.json", "SHA256SUMS.sigstore.json"
	files := 0
	for _, f := range must.Get(os.ReadDir(s.out))(t) {
		if f.IsDir() || strings.HasPrefix(f.Name(), "SHA256SUMS") || strings.HasPrefix(f.Name(), "provenance") {
			continue
		}
		files++
		a := verify(keys, attested, provenance, filepath.Join(s.out, f.Name()))
		check.Same(t, 0, a.Code, "exit code for %s: %s", f.Name(), a.Errs)
	}
	check.Same(t, true, files >= 11, "%d files are attested", files)
	if a := verify(keys, "verify-blob", sums, filepath.Join(s.out, "SHA256SUMS")); a.Code != 0 {
		t.Error(a.Errs)
	}
	for what, bundle := range map[string]string{attested: provenance, "verify-blob": sums} {
		name := map[string]string{attested: s.file(t, "fairlead-manifests_*"), "verify-blob": filepath.Join(s.out, "SHA256SUMS")}[what]
		data := must.Get(os.ReadFile(name))(t)
		data[len(data)/2] ^= 1
		changed := filepath.Join(t.TempDir(), "changed")
		must.Do(t, os.WriteFile(changed, data, 0o600))
		if a := verify(keys, what, bundle, changed); a.Code == 0 {
			t.Errorf("%s accepts a changed byte", what)
		}
		if a := verify(keys+"-other", what, bundle, name); a.Code == 0 {
			t.Errorf("%s accepts another key", what)
		}
	}
}

// push pushes image and chart to a registry, and signs them. Helm pulls the chart, which must name the pushed image.
func (s *site) push(t *testing.T, registry string) {
	crane, helm := suite.Tool(t, "crane"), suite.Tool(t, "helm")
	cmd := exec.CommandContext(t.Context(), crane, "registry", "serve", "--address", registry)
	must.Do(t, cmd.Start())
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	suite.Eventually(t, 30*time.Second, "a registry", func() (bool, string) {
		conn, err := net.DialTimeout("tcp", registry, time.Second)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil, fmt.Sprint(err)
	})
	s.make(t, "push", "OUT="+s.out, "CRANEARGS=--insecure", "SIGN=yes")
	digest := strings.TrimSpace(s.run(t, crane, "digest", "--insecure", s.image+":"+version))
	chart := registry + "/platform/charts/fairlead"
	for ref, pub := range map[string]string{
		s.image + "@" + digest: "keys", chart + ":" + strings.TrimPrefix(version, "v"): "keys", s.image + ":" + version: "keys-other",
	} {
		verify := exec.CommandContext(t.Context(), suite.Tool(t, "cosign"), "verify", "--key", filepath.Join(s.dir, pub, "cosign.pub"), "--insecure-ignore-tlog", "--allow-http-registry", ref)
		a := suite.Run(t, verify, "")
		check.Same(t, true, (a.Code == 0) == (pub == "keys"), "%s with %s: exit code %d\n%s", ref, pub, a.Code, a.Errs)
	}
	dir := t.TempDir()
	t.Setenv("HELM_CACHE_HOME", dir)
	t.Setenv("HELM_CONFIG_HOME", dir)
	t.Setenv("HELM_DATA_HOME", dir)
	out := s.run(t, helm, "template", "fairlead", "oci://"+chart, "--version", strings.TrimPrefix(version, "v"), "--plain-http", "--namespace", "kube-system")
	check.Has(t, out, "image: "+s.image+"@"+digest+"\n", "app.kubernetes.io/version: "+version)
}
