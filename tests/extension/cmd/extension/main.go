// Command extension runs the faulty-on-demand extension server of tests/extension for end-to-end
// tests and benchmarks. It prints one line of JSON with its addresses and its CA when it is ready,
// and ends with SIGINT, SIGTERM, or (-parent) with its standard input.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	certutil "k8s.io/client-go/util/cert"

	"github.com/fairlead-proxy/fairlead/tests/extension"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "extension:", err)
		os.Exit(1)
	}
}

// ready is the line that run prints.
type ready struct {
	Address string `json:"address"`
	Control string `json:"control"`
	CA      string `json:"ca"`
}

func run(ctx context.Context, args []string, stdin io.Reader, stdout io.Writer) error {
	flags := flag.NewFlagSet("extension", flag.ContinueOnError)
	address := flags.String("address", "", "`host:port` to serve on (default a free port of 127.0.0.1)")
	control := flags.String("control", "127.0.0.1:0", "`host:port` of the control server")
	versions := flags.String("group-versions", "", "`list` of group/version, comma-separated (default widgets.example.com/v1)")
	names := flags.String("names", "", "`list` of names of the serving certificate besides localhost and 127.0.0.1")
	caCert := flags.String("ca-cert-file", "", "PEM `file` of the CA that signs its serving certificate (default a new one)")
	caKey := flags.String("ca-key-file", "", "PEM `file` of that CA's key")
	requestHeaderCA := flags.String("requestheader-client-ca-file", "", "PEM `file` of the CA that may assert X-Remote-*")
	allowedNames := flags.String("requestheader-allowed-names", "", "`list` of common names it may have signed (default any)")
	reject := flags.Int("reject-with", http.StatusUnauthorized, "`status` for callers that this CA does not vouch for; 0 only counts them")
	legacy := flags.Bool("legacy-discovery", false, "no aggregated discovery")
	noHTTP1 := flags.Bool("no-http1", false, "no HTTP/1.1")
	noHTTP2 := flags.Bool("no-http2", false, "no HTTP/2")
	record := flags.Int("record", 0, "`number` of requests to remember (default 1024; negative: none)")
	parent := flags.Bool("parent", false, "end when standard input ends")
	verbose := flags.Bool("v", false, "log connections that end badly")
	if err := flags.Parse(args); err != nil {
		return err
	}
	cfg := extension.Config{
		Address: *address, GroupVersions: list(*versions), Names: list(*names), AllowedNames: list(*allowedNames),
		LegacyDiscovery: *legacy, NoHTTP1: *noHTTP1, NoHTTP2: *noHTTP2, Record: *record,
	}
	if *verbose {
		cfg.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	if *caCert != "" {
		var err error
		if cfg.CA, err = pki.ReadCA(*caCert, *caKey); err != nil {
			return err
		}
	}
	if *requestHeaderCA != "" {
		var err error
		if cfg.RequestHeaderCA, err = certutil.NewPool(*requestHeaderCA); err != nil {
			return fmt.Errorf("reading request-header CA: %w", err)
		}
		cfg.RejectWith = *reject
	}
	if *parent {
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		go func() { // ends with standard input, or with the process
			_, _ = io.Copy(io.Discard, stdin)
			cancel()
		}()
	}
	return serve(ctx, cfg, *control, stdout)
}

func serve(ctx context.Context, cfg extension.Config, control string, stdout io.Writer) error {
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", control)
	if err != nil {
		return fmt.Errorf("listening for control: %w", err)
	}
	defer ln.Close()
	server, err := extension.New(cfg)
	if err != nil {
		return err
	}
	defer server.Close()
	// Ten seconds for a head: the clients are tests on the same machine.
	admin := &http.Server{Handler: server.Control(), ReadHeaderTimeout: 10 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = admin.Close() })
	defer stop()
	line := ready{Address: server.Addr(), Control: "http://" + ln.Addr().String(), CA: string(server.CA.PEM())}
	if err := json.NewEncoder(stdout).Encode(line); err != nil {
		return fmt.Errorf("writing ready line: %w", err)
	}
	if err := admin.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func list(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(s, ",")
}
